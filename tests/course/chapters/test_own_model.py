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
        says: a part of the sentence about what cannot be done, in chapter 02; "" if everything can.
        gradients: whether full backward hooks fire.
        frozen: whether no parameter requires grad, so that 07 says it, too.
        asked: the `layer=` of the reader.

    """

    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    layer: str
    overwritten: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    gradients: bool = True
    frozen: bool = False
    asked: str | None = None


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
    "vgg": Case(
        vgg,
        (FIVE,),
        "0",
        1,
        says="0 (Conv2d) can have no full backward hook, so you see the forward hooks: with full backward hooks there",
        gradients=False,
    ),
    "gpt2": Case(language_models.gpt2, (), "transformer.h.1", kwargs=IDS),
    "llama": Case(language_models.llama, (), "model.layers.1", kwargs=IDS),
    "bert": Case(language_models.bert, (), "encoder.layer.0", kwargs=IDS),
    "tuple": Case(language_models.llama, (), "model.layers.0.self_attn", kwargs=IDS, asked="model.layers.0.self_attn"),
    "lstm": Case(Reader, (torch.tensor([[1, 5, 2]]),), "lstm"),
    "dict": Case(Record, ({"x": FOUR},), "head"),
    "two calls": Case(Record, ({"x": FOUR},), "twice", asked="twice"),
    "conv1d": Case(lambda: nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2)), (FOUR[:, None],), "0"),
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
    "bfloat16 decoder": Case(lambda: language_models.gpt2().bfloat16(), (), "transformer.h.1", kwargs=IDS),
}


def mark_slow(name: str) -> Any:
    """A name; if its model takes seconds in each chapter, with the mark of a slow test."""
    return pytest.param(name, marks=pytest.mark.slow) if name in ("detector", "sentences", "english") else name


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
    names = run_cell(number, lambda: OwnModel(model, *case.args, kwargs=case.kwargs, layer=case.asked))
    own, shown, said = names["own"], names["shown"], " ".join(capsys.readouterr().out.split())

    assert own.name == case.layer
    assert repr(shown)
    expected = case.says if number == "02" or (number == "07" and case.frozen) else ""
    assert len(re.findall(r"cannot|torch refuses|No gradient", said)) == bool(expected), said
    assert expected in said
    assert len(hookscope.census(model)) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(clean, list_outputs(model, case), strict=True))
    CHECKS[number](names, model, case, clean, monkeypatch)


def check_what_came_out(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    came: list[Tensor] = []

    def keep(forward: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        came.append(find_tensors(output)[0].detach().clone())
        return output

    patch_forward(monkeypatch, names["own"].layer, keep)
    list_outputs(model, case)
    if "returned" in names:
        assert all(torch.equal(*pair) for pair in zip(names["returned"], came, strict=True))
    else:  # the picker runs without gradients, where an LSTM uses another kernel
        torch.testing.assert_close(names["shown"].activation, came[0].to(names["shown"].activation.dtype))


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
    events = names["recording"].events
    kinds = [event.kind for event in events if event.name == case.layer]
    calls = 2 if case.asked == "twice" else 1
    backward = ["full_backward_pre", "full_backward"] * case.gradients
    assert kinds == ["forward_pre", "forward"] * calls + backward * calls
    around = [name if name != names["own"].title else "" for name in names["own"].chain.values()][-3:]
    assert [*dict.fromkeys(event.name for event in events if event.kind == "forward_pre")] == around


def check_changes(names: Any, model: nn.Module, case: Case, clean: list[Tensor], monkeypatch: Any) -> None:
    def change(forward: Any, *args: Any, **kwargs: Any) -> Any:
        if "reverse" not in names:
            first = next(iter(kwargs), "")
            return forward(3 * args[0], *args[1:], **kwargs) if args else forward(**kwargs | {first: 3 * kwargs[first]})
        output = forward(*args, **kwargs)
        return output.flip(1) if isinstance(output, Tensor) else (output[0].flip(1), *output[1:])

    patch_forward(monkeypatch, names["own"].layer, change)
    changed = list_outputs(model, case)
    rows = names["shown"].rows
    if case.build is detector:  # its rows are sorted by score
        best = [f"best {scores.max().item():.3f}" for scores in (clean[1], changed[1])]
        assert [rows[1]["without"], rows[1]["with"]] == best
        counts = [
            Counter(map(str, new.tolist())) - Counter(map(str, old.tolist()))
            for old, new in zip(clean, changed, strict=True)
        ]
        assert [row["new rows"] for row in rows] == [f"{count.total()} of 300" for count in counts]
        return
    assert [row["largest change"] for row in rows] == [
        pytest.approx((new.double() - old.double()).abs().max().item()) for old, new in zip(clean, changed, strict=True)
    ]


def check_gradients(names: Any, model: nn.Module, case: Case, clean: Any, monkeypatch: Any) -> None:
    if case.frozen:
        assert all("mean |grad|" not in row for row in names["shown"].rows)
        return
    leaves = {name: part for name, part in model.named_modules() if [*part.parameters()] and not [*part.children()]}
    assert names["own"].layers == {name: part for name, part in leaves.items() if name != "spare"}
    assert {row["call"].partition("#")[0] for row in names["shown"].rows} == {
        n or "(root)" for n in names["own"].layers
    }
    name = case.layer if case.layer in leaves else [*names["own"].layers][-1]
    came: list[Tensor] = []

    def keep(forward: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        came.append(find_tensors(output)[0])
        came[-1].retain_grad()
        return came[-1].clone() if isinstance(output, Tensor) else (came[-1].clone(), *output[1:])

    patch_forward(monkeypatch, leaves[name], keep)
    found = find_paths(model(*case.args, **case.kwargs), objects=False)  # without the caches of language models
    outputs = [each.float() for _, each in found if each.requires_grad]
    sum(part.max() for each in outputs for part in each).backward()
    model.zero_grad()
    assert came[0].grad is not None
    row = next(row for row in names["shown"].rows if row["call"] == (name or "(root)"))
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
        (lambda: nn.ReLU().eval(), (FOUR,), {}, "ReLU has no layer with weights"),
        (samples.digit_cnn, (), {}, "cannot run on these inputs: TypeError: .*images.* as in OwnModel.model, x."),
        (samples.digit_cnn, (FOUR,), {}, "cannot run on these inputs: RuntimeError: .*conv2d"),
        (samples.digit_cnn, (FIVE,), {"layer": "block9"}, "no layer 'block9'; did you mean 'block3'"),
        (lambda: Record().eval(), ({"x": FOUR},), {"layer": "spare"}, "spare .* not called in a pass. .*such as head"),
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
    labels = torch.tensor([3, 3])
    before = [{"boxes": boxes, "scores": scores, "labels": labels}]
    after = [{"boxes": boxes.flip(0), "scores": torch.tensor([0.8, 0.5]), "labels": torch.tensor([1, 1, 1])}]
    rows = OwnModel("digits").compare(before, after).rows
    assert "The rows are sorted by score" in capsys.readouterr().out
    assert rows == [
        {"output": "[0]['boxes']", "shape": "(2, 2)", "new rows": "0 of 2"},
        {
            "output": "[0]['scores']",
            "shape": "(2,)",
            "new rows": "2 of 2",
            "without": "best 0.900",
            "with": "best 0.800",
        },
        {"output": "[0]['labels']", "shape": "(2,) → (3,)", "new rows": "3 of 3", "without": "2 × 3", "with": "3 × 1"},
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


class Words:
    """Decodes a token as a letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + token) for token in ids)


def test_the_last_row_of_logits_is_shown_and_the_row_that_changed_most() -> None:
    own = OwnModel(language_models.gpt2(), kwargs=IDS, tokenizer=Words())
    before = torch.zeros(2, 5, 20)
    before[0, 4, 3] = 50
    after = before.clone()
    after[1, 2, 7] = 9
    after[0, 4, 5] = 50
    (row,) = own.compare({"logits": before}, {"logits": after}).rows
    words = [f"sample 0: next token: 'd', {share}" for share in ("100.0%", "50.0%")]
    assert [row["without"], row["with"]] == words
    assert row["largest change in"] == "sample 0, row 4"
    after[0, 4, 5] = 4
    (row,) = own.compare({"logits": before}, {"logits": after}).rows
    assert row["largest change in"] == "sample 1, row 2"
    assert row["with"].startswith("sample 1: ")  # sample 0 would look as if nothing changed
    assert row["rows with another highest"] == "1 of 10"


def test_what_a_comparison_cannot_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = {"input_ids": IDS["input_ids"][:1, :1], "output_hidden_states": True}
    run_cell("03", lambda: OwnModel(language_models.llama(), kwargs=kwargs, layer="model.layers.0"))
    said = " ".join(capsys.readouterr().out.split())
    assert "It has one position on axis 1: reversing it changes nothing." in said
    assert said.count("was stored before the hook could change it") == 1
    assert "['hidden_states'][1] was stored" in said
    assert "['past_key_values'] (DynamicCache) is not compared." in said


def test_a_pre_hook_on_integers_is_refused_in_its_chapter_only() -> None:
    args = torch.tensor([[1, 2]])
    for number in set(CELLS) - {"04"}:
        run_cell(number, lambda: OwnModel(Reader().eval(), args, layer="words"))
    with pytest.raises(
        OwnModelError, match=r"words .Embedding. gets no dense floating-point tensor.*such as head, lstm"
    ):
        run_cell("04", lambda: OwnModel(Reader().eval(), args, layer="words"))


def test_many_layers_are_printed_in_one_line() -> None:
    own = OwnModel(language_models.llama(), kwargs=IDS)
    assert repr(own.layers).startswith("21 layers: model.embed_tokens, model.layers.*.input_layernorm (2), ")


@pytest.mark.parametrize(
    ("build", "args", "axes"),
    [
        (Reader, (torch.tensor([[1, 5, 2]]),), ("token", "feature")),
        (lambda: nn.Sequential(nn.Conv1d(1, 3, 2)), (torch.ones(2, 1, 4),), ("channel", "position")),
        (lambda: nn.Sequential(nn.Linear(4, 2)), (torch.ones(2, 1, 4),), ("row", "column")),
        (lambda: nn.Sequential(nn.Linear(4, 2)), (FOUR,), ("row", "feature")),
    ],
)
def test_a_picture_says_what_its_rows_are(build: Any, args: Any, axes: tuple[str, str]) -> None:
    shown = run_cell("00", lambda: OwnModel(build().eval(), *args))["shown"]
    assert f"Each row is one {axes[0]}, each column one {axes[1]}." in shown.caption
    assert [*shown.rows[0]] == [axes[0], "min", "max", "mean"]


def test_one_huge_value_does_not_set_the_colors(capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnModel("digits")
    calm = torch.linspace(-1, 1, 40).reshape(1, 5, 8)
    huge = calm.clone()
    huge[0, 0, 0] = 1e6
    shown = own.draw(huge)
    assert "1 of 40 cells lie outside the scale" in shown.caption
    assert "outside" not in own.draw(calm).caption
    assert "from -0.9487 to 1." in shown.alt
    assert shown.rows[0]["max"] == 1e6


def test_a_picture_of_the_first_of_several_calls_says_it() -> None:
    shown = run_cell("00", lambda: OwnModel(Record().eval(), {"x": FOUR}, layer="twice"))["shown"]
    assert "from call 1 of 2" in shown.caption


def test_a_packed_sequence_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    assert OwnModel(nn.GRU(4, 5).eval(), packed).name == ""
    assert "step 0 of all sequences comes first" in capsys.readouterr().out


def test_a_module_around_the_layer_that_takes_no_full_backward_hook_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).add_(1)  # writes to what `inner` returned

    own = OwnModel(nn.Sequential(Adds()).eval(), FOUR)
    layers, kinds = own.choose_hooks([*own.chain])
    assert {own.chain[layer] for layer in layers} == {"Sequential", "0", "0.inner.0"}
    assert kinds[2:] == ["full_backward_pre", "full_backward"]
    assert "0.inner (Sequential) is left out: with full backward hooks" in capsys.readouterr().out


def test_padding_is_not_drawn_and_tokens_have_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    ids = torch.tensor([[0, 0, 3, 4], [1, 2, 3, 4]])
    mask = (ids > 0).long()
    own = OwnModel(language_models.gpt2(), kwargs={"input_ids": ids, "attention_mask": mask}, tokenizer=Words())
    output = torch.arange(2 * 4 * 300.0).reshape(2, 4, 300)
    drawn = own.draw(output)
    assert [row["token"] for row in drawn.rows] == ["'d'", "'e'"]
    assert [row["min"] for row in drawn.rows] == [600.0, 900.0]
    assert "sample 0, without 2 rows of padding" in drawn.alt
    assert "first 200 of 300 columns" in drawn.caption
