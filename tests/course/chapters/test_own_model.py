"""The cell at the end of a chapter, with models that readers bring: right results or a sentence, and no hook left."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope.pytree import find_paths, find_tensors
from hookscope_course.chapters.named_models import NAMED
from hookscope_course.chapters.own_model import OwnModel, OwnModelError
from tests.shared import language_models
from tests.shared.parsed_chapters import CHAPTERS

CELLS = {
    chapter.number: cell.source
    for chapter in CHAPTERS
    for cell in chapter.notebook.cells
    if cell.cell_type == "code" and "OwnModel()" in cell.source
}


class Reader(nn.Module):
    """An LSTM between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class Record(nn.Module):
    """Takes a dict and returns one; `twice` is called two times, and `spare` never."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self.head(self.twice(self.twice(batch["x"])))}


@dataclass
class Case:
    """A model with its inputs, and what has to be found in it.

    Attributes:
        layer: where the hook goes.
        overwritten: how many layers return a tensor that is overwritten later.
        says: a part of the sentence about what cannot be done; "" if everything can.
        gradients: whether full backward hooks fire.
        frozen: whether no parameter requires grad, which matters in two chapters only.

    """

    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    layer: str
    overwritten: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    gradients: bool = True
    frozen: bool = False


def resnet18() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18()


def vgg() -> nn.Module:
    """The start and the end of a VGG: a ReLU overwrites the output of each convolution."""
    conv, relu = nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True)
    return nn.Sequential(conv, relu, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def detector() -> nn.Module:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)


FIVE, FOUR, PHOTO = samples.digit(5), torch.tensor([[1.0, -2.0, 3.0, 0.5]]), samples.photo()
IDS = {"input_ids": language_models.IDS}
CASES = {
    "resnet18": Case(resnet18, (PHOTO,), "conv1", 17),
    "detector": Case(detector, ([PHOTO[0]],), "backbone.features.0.0.0", 85),
    "vgg": Case(vgg, (FIVE,), "0", 1, says="No full backward hook can go on 0 (Conv2d)", gradients=False),
    "gpt2": Case(language_models.gpt2, (), "transformer.h.0.attn.c_attn", kwargs=IDS),
    "llama": Case(language_models.llama, (), "model.layers.0.self_attn.q_proj", kwargs=IDS),
    "bert": Case(language_models.bert, (), "encoder.layer.0.attention.self.query", kwargs=IDS),
    "lstm": Case(Reader, (torch.tensor([[1, 5, 2]]),), "head", says="lstm (LSTM), because it returns a tuple"),
    "dict": Case(Record, ({"x": FOUR},), "head", says="and one tensor for it would be wrong; 1 more has such a reason"),
    "one layer": Case(lambda: nn.Sequential(nn.Linear(4, 2)), (FOUR,), "0"),
    "a layer": Case(lambda: nn.Linear(4, 2), (FOUR,), ""),
    "frozen": Case(
        lambda: samples.digit_cnn().requires_grad_(False),
        (FIVE,),
        "block1.conv",
        says="are frozen",
        gradients=False,
        frozen=True,
    ),
    "bfloat16": Case(lambda: samples.digit_cnn().bfloat16(), (FIVE.bfloat16(),), "block1.conv"),
    "bfloat16 decoder": Case(lambda: language_models.gpt2().bfloat16(), (), "transformer.h.0.attn.c_attn", kwargs=IDS),
}


def mark_slow(name: str) -> Any:
    """A name; if its model takes seconds in each chapter, with the mark of a slow test."""
    return pytest.param(name, marks=pytest.mark.slow) if name in ("detector", "sentences") else name


def run_cell(number: str, choose: Callable[[], OwnModel]) -> dict[str, Any]:
    """Run the cell of a chapter as it stands in the lesson; its names, and the value of its last line as `shown`."""
    tree = ast.parse(CELLS[number])
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    names: dict[str, Any] = {"hookscope": hookscope, "nn": nn, "OwnModel": choose}
    names["LayerPicker"] = hookscope.widgets.LayerPicker
    exec(compile(tree, number, "exec"), names)
    names["shown"] = eval(compile(ast.Expression(last.value), number, "eval"), names)
    return names


def list_outputs(model: nn.Module, case: Case) -> list[Tensor]:
    output = model(*case.args, **case.kwargs)
    if isinstance(output, Mapping):
        output = [value for key, value in output.items() if key != "past_key_values"]
    return [tensor.detach() for tensor in find_tensors(output)]


def patch_forward(monkeypatch: pytest.MonkeyPatch, layer: nn.Module, change: Callable[..., Any]) -> None:
    """Change a layer without a hook: `change` gets its forward and its arguments."""
    monkeypatch.setattr(layer, "forward", functools.partial(change, layer.forward))


@pytest.mark.parametrize("number", CELLS)
@pytest.mark.parametrize("name", [mark_slow(name) for name in CASES])
def test_a_model_takes_the_place_of_the_digit_network(
    name: str, number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build().eval()
    clean = list_outputs(model, case)
    names = run_cell(number, lambda: OwnModel(model, *case.args, kwargs=case.kwargs))
    own, shown, said = names["own"], names["shown"], " ".join(capsys.readouterr().out.split())

    assert own.name == case.layer
    assert repr(shown)
    expected = case.says if number in ("02", "07") or not case.frozen else ""
    assert len(re.findall(r"The hook cannot|No full backward|No gradient", said)) == bool(expected), said
    assert expected in said
    assert len(hookscope.census(model)) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(clean, list_outputs(model, case), strict=True))
    CHECKS[number](names, model, case, clean, monkeypatch)


def check_what_came_out(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    came: list[Tensor] = []

    def keep(forward: Any, *args: Any) -> Tensor:
        came.append(forward(*args))
        return came[-1].clone()

    patch_forward(monkeypatch, names["own"].layer, keep)
    list_outputs(model, case)
    if "returned" in names:
        assert torch.equal(names["returned"][0], came[0])
    else:  # the picker runs without gradients, where an LSTM uses another kernel
        torch.testing.assert_close(names["shown"].activation, came[0].detach().to(names["shown"].activation.dtype))


def check_calls(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    called: list[str] = []
    for module, name in names["own"].chain.items():

        def note(forward: Any, *args: Any, name: str = name, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            called.append(name)
            return output

        patch_forward(monkeypatch, module, note)
    list_outputs(model, case)
    assert names["called"] == called
    assert [row["calls"] for row in names["shown"].rows] == [called.count(name) for name in names["own"].chain.values()]


def check_order(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    kinds = [event.kind for event in names["recording"].events]
    assert kinds == ["forward_pre", "forward", *(["full_backward_pre", "full_backward"] if case.gradients else [])]


def check_changes(names: Any, model: nn.Module, case: Case, clean: list[Tensor], monkeypatch: Any) -> None:
    def change(forward: Any, x: Tensor) -> Tensor:
        return forward(x).flip(1) if names.get("reverse") else forward(3 * x)

    patch_forward(monkeypatch, names["own"].layer, change)
    changed = list_outputs(model, case)
    rows = names["shown"].rows
    if case.build is detector:  # its rows are sorted by score
        best = {"highest without": clean[1], "highest with": changed[1]}
        assert [{when: row.get(when) for when in best} for row in rows] == [
            dict.fromkeys(best),
            {when: f"{scores.max().item():.3f}" for when, scores in best.items()},
            dict.fromkeys(best),
        ]
        return
    assert [row["largest change"] for row in rows] == [
        pytest.approx((new.double() - old.double()).abs().max().item()) for old, new in zip(clean, changed, strict=True)
    ]


def check_gradients(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    if case.frozen:
        assert all("mean |grad|" not in row for row in names["shown"].rows)
        return
    came: list[Tensor] = []

    def keep(forward: Any, *args: Any) -> Tensor:
        came.append(forward(*args))
        came[0].retain_grad()
        return came[0].clone()

    layer = names["own"].layer
    patch_forward(monkeypatch, layer, keep)
    found = find_paths(model(*case.args, **case.kwargs), objects=False)  # without the caches of language models
    outputs = [each for _, each in found if each.requires_grad]
    torch.stack([each.max().float() for each in outputs]).sum().backward()
    model.zero_grad()
    assert came[0].grad is not None
    row = next(row for row in names["shown"].rows if row["call"] == (case.layer or "(root)"))
    assert row["mean |grad|"] == pytest.approx(came[0].grad.double().abs().mean().item(), rel=1e-2)


def check_pitfalls(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    calls = Counter[nn.Module]()
    no_tensor = set[nn.Module]()
    modules = list(model.modules())
    for module in modules:

        def note(forward: Any, *args: Any, module: nn.Module = module, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            calls[module] += 1
            no_tensor.update([] if isinstance(output, Tensor) else [module])
            return output

        patch_forward(monkeypatch, module, note)
    list_outputs(model, case)
    uncalled = sum(calls[module] == 0 for module in modules)
    several = sum(count > 1 for count in calls.values())
    assert [row["layers"] for row in names["shown"].rows] == [uncalled, several, case.overwritten, len(no_tensor), 0]


CHECKS: dict[str, Callable[..., None]] = {
    "00": check_what_came_out,
    "01": check_calls,
    "02": check_order,
    "03": check_changes,
    "04": check_changes,
    "06": check_what_came_out,
    "07": check_gradients,
    "11": check_pitfalls,
}


def test_each_of_the_eight_chapters_has_one_cell() -> None:
    assert [*CELLS] == [*CHECKS]
    assert (
        sum(
            "OwnModel()" in cell.source
            for chapter in CHAPTERS
            for cell in chapter.notebook.cells
            if cell.cell_type == "code"
        )
        == 8
    )


def compiled() -> nn.Module:
    return torch.compile(samples.digit_cnn())  # type: ignore[return-value]


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 2)).eval())  # type: ignore[no-any-return]


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2), nn.Dropout())


@pytest.mark.parametrize(
    ("model", "args", "options", "message"),
    [
        (compiled, (FIVE,), {}, "compiled, so torch can ignore new hooks. Pass the model that you compiled"),
        (scripted, (FOUR,), {}, "TorchScript, which runs only some hooks. Pass the model that you scripted"),
        (dropout, (FOUR,), {}, "in train mode, where dropout and batch norm change .* Call model.eval"),
        (lambda: nn.LSTM(4, 2).eval(), (FOUR,), {}, "no layer for the hook: not the model itself .LSTM., because it"),
        (lambda: nn.Linear(4, 2).eval(), (FOUR[0],), {}, r"because it returns the shape \(2,\), not 2 to 4 axes"),
        (lambda: nn.ReLU().eval(), (FOUR,), {}, "ReLU has no layer with weights"),
        (samples.digit_cnn, (), {}, "cannot run on these inputs: TypeError: .*images.* as in OwnModel.model, x."),
        (samples.digit_cnn, (FOUR,), {}, "cannot run on these inputs: RuntimeError: .*conv2d"),
        (samples.digit_cnn, (FIVE,), {"layer": "block9"}, "no layer 'block9'; did you mean 'block3'"),
        (lambda: Reader().eval(), (torch.tensor([[1, 2]]),), {"layer": "lstm"}, "lstm .* a tuple, .*such as head"),
        (lambda: "resnet81", (), {}, "no model 'resnet81'; did you mean 'resnet18'"),
        (lambda: "zzz", (), {}, "no model 'zzz'; the names are photo, sentences, english, digits, resnet18, gpt2"),
        (lambda: [FOUR], (), {}, "You can also pass a model and its inputs"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_take_the_place_is_refused_in_a_sentence(
    model: Callable[[], Any], args: tuple[Any, ...], options: dict[str, str], message: str
) -> None:
    with pytest.raises(OwnModelError, match=message) as caught:
        OwnModel(model(), *args, **options)
    assert caught.value._render_traceback_() == [f"OwnModelError: {caught.value}"]


@pytest.mark.parametrize("name", [mark_slow(name) for name in NAMED])
def test_a_name_gives_a_model_that_all_cells_take(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    for number in CELLS:
        names = run_cell(number, lambda: OwnModel(name))
        assert repr(names["shown"])
        assert len(hookscope.census(names["own"].model)) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert "cannot" not in capsys.readouterr().out


def test_without_the_weights_there_is_a_note_and_the_digit_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "has_photo_weights", lambda: False)
    assert type(OwnModel().model) is samples.DigitCNN
    assert "NOTE: the weights of the photo network are missing" in capsys.readouterr().out


def test_a_model_that_draws_at_random_is_not_compared_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.rand(2)

    run_cell("03", lambda: OwnModel(Noise().eval(), FOUR))
    assert "Two calls without a hook differ, too" in capsys.readouterr().out


def test_outputs_of_another_shape_are_not_subtracted(capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnModel("digits")
    rows = own.compare({"a": torch.ones(1, 3)}, {"a": torch.ones(1, 2), "b": torch.ones(1)}).rows
    assert rows == [{"output": "['a']", "shape": "(1, 3) → (1, 2)"}, {"output": "['b']", "shape": "missing → (1,)"}]


class Growing(nn.Module):
    """Appends its input to a cache that the caller passes, as a language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.block = nn.Sequential(nn.LayerNorm(2), nn.Identity())

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(x)
        return self.block(self.layer(torch.cat(cache)))


def test_a_cache_in_the_inputs_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    cache: list[Tensor] = []
    names = run_cell("03", lambda: OwnModel(Growing().eval(), FOUR, cache))
    assert names["before"].shape == names["after"].shape == (1, 2)
    assert cache == []
    assert "Two calls" not in capsys.readouterr().out


def test_a_block_that_returns_a_tensor_can_be_chosen() -> None:
    own = OwnModel(Growing().eval(), FOUR, [], layer="block")
    assert own.layer is own.model.block


def test_empty_outputs_are_not_taken_for_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            scores = self.layer(x)
            return {"scores": scores[scores > 1e6], "labels": torch.zeros(0, dtype=torch.long)}

    run_cell("03", lambda: OwnModel(Detector().eval(), FOUR))
    assert "Both outputs of Detector are empty" in capsys.readouterr().out
    run_cell("02", lambda: OwnModel(Detector().eval(), FOUR))
    assert "its output is empty: it detected nothing" in capsys.readouterr().out


def test_rows_that_are_sorted_by_score_are_not_compared_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    boxes, scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.9, 0.4])
    before = [{"boxes": boxes, "scores": scores}]
    after = [{"boxes": boxes.flip(0), "scores": torch.tensor([0.8, 0.5])}]
    rows = OwnModel("digits").compare(before, after).rows
    assert "The rows are sorted by score" in capsys.readouterr().out
    assert rows == [
        {"output": "[0]['boxes']", "shape": "(2, 2)"},
        {"output": "[0]['scores']", "shape": "(2,)", "highest without": "0.900", "highest with": "0.800"},
    ]


def test_rows_of_padding_are_not_compared() -> None:
    mask = torch.tensor([[1, 1, 0]])
    own = OwnModel(
        language_models.bert().eval(), kwargs={"input_ids": torch.tensor([[1, 2, 0]]), "attention_mask": mask}
    )
    before, after = torch.zeros(1, 3, 2), torch.tensor([[[0.0, 0.5], [0.0, 0.25], [9.0, 9.0]]])
    (row,) = own.compare({"logits": before}, {"logits": after}).rows
    assert row["largest change"] == 0.5
    assert row["rows with another highest"] == "2 of 2"


def test_a_picture_does_not_name_a_layer_that_it_cannot_know() -> None:
    own = OwnModel("digits")
    with hookscope.capture(own.model, "block2") as seen:
        own.model(*own.args)
    assert own.name not in repr(own.draw(seen["block2"].output))
