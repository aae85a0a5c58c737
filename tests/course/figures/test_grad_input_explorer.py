"""GradInputExplorer: what it shows is what compare_backward_hooks saw, and its sentences are true."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from PIL import Image
from torch import nn

from hookscope import census, compare_backward_hooks
from hookscope_course.figures.grad_input_explorer.example_layers import LAYERS
from hookscope_course.figures.grad_input_explorer.figure import GradInputExplorer


def shapes(explorer: GradInputExplorer) -> tuple[object, object]:
    both = explorer.comparison
    return both.legacy.shapes["grad_input"], both.full.shapes["grad_input"]


def blocks(explorer: GradInputExplorer, kind: str) -> list[list[str]]:
    """The lines of the boxes of a kind."""
    return [box["lines"] for box in explorer.shown["drawing"]["wide"]["boxes"] if box["kind"] == kind]


def with_hooks(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, object]:
    """What both hooks get on copies of a module, with plain torch: an error, None for a silent hook, or grad_input."""
    got: dict[str, object] = {}
    for kind in ("register_backward_hook", "register_full_backward_hook"):
        seen: list[object] = []
        one = copy.deepcopy(module)
        handle = getattr(one, kind)(lambda module, grad_input, grad_output, seen=seen: seen.append(grad_input))
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                args = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
                output = one(
                    *[each.clone() if each.requires_grad and getattr(one, "inplace", False) else each for each in args]
                )
                tensors = (
                    output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
                )
                flat = [each for value in tensors for each in (value if isinstance(value, tuple) else [value])]
                sum(each.sum() for each in flat if isinstance(each, torch.Tensor) and each.requires_grad).backward()
            got[kind] = seen[0] if seen else None
        except RuntimeError as error:
            got[kind] = str(error)
        handle.remove()
    return got


@pytest.mark.parametrize(
    ("chosen", "legacy", "full"),
    [
        ({"layer": "Linear"}, ((5,), (3, 4), (4, 5)), ((3, 4),)),
        ({"layer": "Linear", "input_shape": (4,)}, ((1, 5),), ((4,),)),
        ({"layer": "Linear", "input_shape": (2, 3, 4)}, ((6, 5),), ((2, 3, 4),)),
        ({"layer": "Linear", "bias": False}, ((3, 4), (4, 5)), ((3, 4),)),
        ({"layer": "Linear", "requires_grad": False}, ((5,), None, (4, 5)), (None,)),
        ({"layer": "Conv2d"}, ((2, 3, 6, 6), (8, 3, 3, 3), (8,)), ((2, 3, 6, 6),)),
        ({"layer": "Conv2d", "bias": False}, ((2, 3, 6, 6), (8, 3, 3, 3), None), ((2, 3, 6, 6),)),
        ({"layer": "BatchNorm2d"}, ((2, 3, 4, 4), (3,), (3,)), ((2, 3, 4, 4),)),
        ({"layer": "Embedding"}, ((7, 3),), (None,)),
        ({"layer": "Identity"}, None, ((3, 4),)),
        ({"layer": "Sequential(Linear, ReLU)"}, ((3, 5),), ((3, 4),)),
        ({"layer": "x + y + z"}, ((2, 3), (2, 3)), ((2, 3), (2, 3), (2, 3))),
        ({"layer": "x * y, y without requires_grad"}, ((2, 3), None), ((2, 3), (2, 3))),
        ({"layer": "output is a dict"}, ((5,), (3, 4), (4, 5)), None),
        ({"layer": "ReLU", "inplace": True}, ((3, 4),), None),
    ],
)
def test_the_tuples_of_both_hooks(chosen: dict[str, object], legacy: object, full: object) -> None:
    explorer = GradInputExplorer(**chosen)
    assert shapes(explorer) == (legacy, full)
    assert explorer.problem == ""


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_shape_and_option(layer: str) -> None:
    kind = LAYERS[layer]
    explorer = GradInputExplorer(layer=layer)
    for shape in kind.shapes:
        explorer.input_shape = shape
        for option in kind.options:
            setattr(explorer, option, not getattr(explorer, option))
        assert explorer.input_shape == shape
        legacy, full = explorer.comparison.legacy, explorer.comparison.full
        # The picture: the legacy hook is drawn beside its node, and the full one on the edge of the frame.
        for layout in explorer.shown["drawing"].values():
            assert bool(layout["legacy"]) == bool(legacy.node)
            width, height = layout["box"]
            x, y, wide, high = layout["frame"]
            if legacy.node:
                near = [
                    box["lines"][0]
                    for box in layout["boxes"]
                    if abs(box["at"][0] - layout["legacy"][0]) <= width / 2 + 10
                    and abs(box["at"][1] - layout["legacy"][1]) <= height / 2 + 10
                ]
                assert near == [legacy.node.rpartition("Backward")[0]]
            left_or_bottom = layout["full"][0] == x or layout["full"][1] == y + high
            assert left_or_bottom
            for box in layout["boxes"]:
                inside = x < box["at"][0] < x + wide and y < box["at"][1] < y + high
                assert inside == (box["kind"] in ("node", "leaf", "more"))
                assert width / 2 <= box["at"][0] <= layout["size"][0] - width / 2
                assert height / 2 <= box["at"][1] <= layout["size"][1] - height / 2
            entries = [index for index, entry in enumerate(full.grad_input or ()) if entry is not None]
            for index in entries:
                missing = [box["lines"][0] for box in layout["boxes"] if box["kind"] == "missing"]
                assert any(str(index) in tag["text"] for tag in layout["tags"]) or {"x": 0, "y": 1}[missing[0]] == index
        outcome = (
            "raises"
            if full.error
            else "same"
            if explorer.verdict.startswith("Both hooks get the same")
            else "never"
            if explorer.verdict.startswith(("Only the", "Neither hook"))
            else "different"
        )
        assert explorer.outcome == outcome
        # The sentence.
        same = explorer.verdict.startswith("Both hooks get the same")
        if legacy.called and full.called:
            assert same == (legacy.shapes["grad_input"] == full.shapes["grad_input"])
        assert explorer.problem == ""


def test_verdicts() -> None:
    explorer = GradInputExplorer()
    assert explorer.verdict == (
        "They differ. The legacy hook is on AddmmBackward0, one of the 2 nodes that forward made, and gets the "
        "gradients of the inputs of this node: (5,), (3, 4), (4, 5). The full hook gets one entry for each argument of "
        "the module: (3, 4)."
    )
    explorer.layer = "ReLU"
    assert explorer.verdict.startswith(
        "Both hooks get the same here, because forward made only one node, ReluBackward0"
    )
    explorer.inplace = True
    assert explorer.verdict.startswith("With the full hook, the module raises an error. The hook turns")
    assert "is being modified inplace" in next(
        row["full hook"] for row in explorer.shown["rows"] if row["what"] == "error"
    )
    assert blocks(explorer, "argument") == [["input", "(3, 4)"]]
    assert explorer.shown["aside"].endswith("on a leaf that requires grad.")
    explorer.layer = "Identity"
    assert explorer.verdict.startswith("Only the full hook is called.")
    explorer.layer = "output is a dict"
    assert explorer.verdict.startswith("Only the legacy hook is called")
    own = GradInputExplorer(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2, requires_grad=True))
    assert own.verdict == (
        "Both hooks get the same here, although the legacy hook is on ReluBackward0, one of 2 nodes."
    )


def test_warnings_are_shown_in_full() -> None:
    explorer = GradInputExplorer(layer="Linear", requires_grad=False)
    (row,) = [row for row in explorer.shown["rows"] if row["what"] == "warning"]
    assert row["legacy hook"].endswith("get the documented behavior.")
    if torch.__version__ >= (2, 8):
        assert row["full hook"].startswith("Full backward hook is firing when gradients are computed")


def test_choosing_a_layer_sets_what_it_begins_with() -> None:
    explorer = GradInputExplorer(layer="Linear", bias=False, input_shape=(4,))
    explorer.layer = "Embedding"
    assert (explorer.bias, explorer.input_shape, explorer.requires_grad) == (True, (2, 5), False)
    assert explorer.shown["fixed"] == "integers cannot require grad"
    explorer.layer = "ReLU"
    assert (explorer.input_shape, explorer.requires_grad) == ((3, 4), True)
    assert explorer.shown["fixed"] == "the layer has no parameters, so its input must require grad"
    explorer.layer = "Linear"
    assert explorer.shown["fixed"] == ""
    explorer.input_shape = (7, 4)
    assert explorer.shown["shapes"][-1] == [7, 4]
    assert shapes(explorer)[1] == ((7, 4),)


@pytest.mark.parametrize(
    ("layer", "name", "value", "said"),
    [
        ("ReLU", "bias", False, "ReLU has no option bias"),
        ("Conv2d", "input_shape", (2, 3), "Conv2d does not accept an input of shape"),
        ("ReLU", "requires_grad", False, "no backward hook can fire"),
        ("Embedding", "requires_grad", True, "not possible for Embedding, because its input contains integers"),
    ],
)
def test_bad_choices_say_what_is_wrong_and_change_nothing(layer: str, name: str, value: object, said: str) -> None:
    explorer = GradInputExplorer(layer=layer)
    before, text = getattr(explorer, name), repr(explorer)
    with pytest.raises(ValueError, match=said):
        setattr(explorer, name, value)
    assert getattr(explorer, name) == before
    assert repr(explorer) == text


def test_the_same_numbers_every_time() -> None:
    gradients = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        gradients.append(GradInputExplorer(layer="Dropout").comparison.legacy.grad_input[0])
    assert torch.equal(*gradients)


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, left: torch.Tensor, scale: float, *, right: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(left) * scale) + right


def test_your_own_module_stays_as_it_is() -> None:
    torch.manual_seed(3)
    module, left, right = Mine(), torch.randn(4, 3, requires_grad=True), torch.randn(4, 2)
    module.linear.weight.grad = torch.ones(2, 3)
    module.linear.register_forward_hook(lambda *_: None)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    explorer = GradInputExplorer(module, left, 2.0, kwargs={"right": right})
    assert explorer.layer == "your Mine"
    assert shapes(explorer)[1] == ((4, 3), None)
    assert repr(explorer.comparison) == repr(compare_backward_hooks(module, left, 2.0, kwargs={"right": right}))
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert torch.equal(module.linear.weight.grad, torch.ones(2, 3))
    assert left.grad is None
    assert module.training
    assert torch.equal(torch.get_rng_state(), generator)
    assert len(census(module, include_global=False)) == 1
    with pytest.raises(ValueError, match=r"bias=False cannot be set, because this explorer shows your \w+"):
        explorer.bias = False
    assert explorer.shown["own"]
    explorer.layer = "Linear"
    assert not explorer.shown["own"]
    assert shapes(explorer)[1] == ((3, 4),)
    assert torch.equal(torch.get_rng_state(), generator), "making a layer takes no random number of yours"
    explorer.layer = "your Mine"
    assert shapes(explorer)[1] == ((4, 3), None)


def test_a_large_graph_is_cut_but_keeps_the_argument() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    explorer = GradInputExplorer(model, torch.ones(2, 4, requires_grad=True))
    assert len(explorer.shown["drawing"]["wide"]["boxes"]) <= 10
    ((more,),) = blocks(explorer, "more")
    assert more.endswith("more nodes")
    assert blocks(explorer, "argument") == [["input", "(2, 4)"]]
    assert explorer.shown["drawing"]["wide"]["tags"][0]["text"] == "[0]"


@pytest.mark.parametrize("layer", [name for name in LAYERS if name not in ("MultiheadAttention", "Dropout")])
@pytest.mark.parametrize("inplace", [False, True])
def test_the_outcome_is_that_of_plain_hooks(layer: str, inplace: bool) -> None:
    kind = LAYERS[layer]
    if inplace and "inplace" not in kind.options:
        return
    for shape in kind.shapes:
        explorer = GradInputExplorer(layer=layer, inplace=inplace, input_shape=shape)
        torch.manual_seed(0)
        got = with_hooks(kind.make(True, inplace), kind.arguments(shape, not kind.integer, False))
        legacy, full = got["register_backward_hook"], got["register_full_backward_hook"]
        if isinstance(full, str):
            assert explorer.outcome == "raises"
            continue
        if legacy is None or full is None:
            assert explorer.outcome == "never", shape
            continue
        same = len(legacy or ()) == len(full or ()) and all(
            one is other
            or (one is not None and other is not None and one.shape == other.shape and torch.allclose(one, other))
            for one, other in zip(legacy or (), full or (), strict=True)
        )
        assert explorer.outcome == ("same" if same else "different"), shape


def test_the_module_of_somebody_who_returns_an_input() -> None:
    explorer = GradInputExplorer(nn.Sequential(nn.Identity()), torch.ones(2, requires_grad=True) * 2)
    layout = explorer.shown["drawing"]["wide"]
    assert explorer.comparison.legacy.node
    assert layout["legacy"][0] < layout["frame"][0], "the hook is on a node before the module"


def test_names_are_text_only() -> None:
    hostile = type("<img src=x onerror=alert(1)>", (nn.Linear,), {})
    explorer = GradInputExplorer(hostile(2, 2), torch.ones(1, 2))
    assert explorer.shown["title"] == "<img src=x onerror=alert(1)>"
    assert explorer.layer == "your <img src=x onerror=alert(1)>"


def test_the_picture_and_its_words() -> None:
    explorer = GradInputExplorer()
    first = explorer.png
    assert Image.open(io.BytesIO(first)).size[0] > 200
    assert "The legacy hook is on AddmmBackward0." in explorer.alt
    explorer.bias = False
    assert explorer.png != first
    assert "MmBackward0" in explorer.alt
    assert repr(explorer).startswith("GradInputExplorer Linear (3, 4): The legacy hook is on MmBackward0. The full")
