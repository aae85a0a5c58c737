"""The symptom tree: every way ends in a cure, its tools exist, and what torch is said to say, it says."""

from __future__ import annotations

import ast
import warnings

import pytest
import torch
from torch import nn

import hookscope
from hookscope.diagnoses import CAUSES
from hookscope_course.figures import SymptomTree
from hookscope_course.figures.sealed_models.puzzles import BOXES, LAYERS, Puzzle
from hookscope_course.figures.symptom_tree.symptoms import PLACES, SYMPTOMS, Ask, Cure, paths


def test_every_way_ends_in_a_cure_and_needs_three_questions_at_most() -> None:
    ends = [*paths()]
    assert {symptom for symptom, _, _ in ends} == {*SYMPTOMS}
    assert all(1 <= len(way) <= 3 for _, way, _ in ends)
    assert len({cure.cause for _, _, cure in ends}) == len(ends), "no cause stands in two places"
    for symptom, way, cure in ends:
        tree = SymptomTree(symptom, *(answer for _, answer in way))
        assert tree.cure == cure
        assert cure.cause in repr(tree)
        ast.parse(cure.code)
        for ask, _ in way:
            ast.parse(ask.tool)
            assert ask.question.endswith("?")


def test_each_tool_of_hookscope_answers_its_question_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    class Net(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.stem(x))  # type: ignore[no-any-return, operator]

    model = Net()
    for name, layer in {"stem": nn.Linear(1, 1), "relu": nn.ReLU(inplace=True), "head": nn.Linear(1, 1)}.items():
        model.add_module(name, layer)
    model.stem.register_forward_hook(print)  # type: ignore[union-attr, operator]
    told = {}
    for tool in {ask.tool for _, way, _ in paths() for ask, _ in way if "hookscope." in ask.tool}:
        of_tool = (
            nn.Sequential(nn.Linear(1, 1)) if "record" in tool else model
        )  # its backward hooks forbid in-place steps
        exec(tool, {"hookscope": hookscope, "model": of_tool, "x": torch.ones(1, 1)})
        told[tool] = capsys.readouterr().out
    assert len(told) == 5
    of = {
        part: next(out for tool, out in told.items() if part in tool) for part in ("uncalled", "order", "overwritten")
    }
    assert "head" in of["uncalled"]
    assert "stem" in of["order"]
    assert "stem" in of["overwritten"]
    assert "forward" in next(out for tool, out in told.items() if "record" in tool)


def test_the_whole_tree_is_in_the_alt_text_and_the_numbers() -> None:
    tree = SymptomTree("Memory grows")
    for symptom, way, cure in paths():
        assert all(words in tree.alt for words in (symptom, cure.cause, cure.cure, *(ask.question for ask, _ in way)))
        assert cure.code in [row["write"] for row in tree.numbers()]
    assert tree.cure is None
    assert "grad_fn" in repr(tree)


def legacy_then_full() -> None:
    layer = nn.Linear(1, 1)
    with warnings.catch_warnings(action="ignore"):
        layer.register_backward_hook(lambda *_: None).remove()
    layer.register_full_backward_hook(lambda *_: None)


def post_accumulate_returns() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.register_post_accumulate_grad_hook(lambda w: w.grad)  # type: ignore[no-untyped-call]
    torch.autograd.backward(weight.sum())


def in_place_behind_full() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    net[0].register_full_backward_hook(lambda *_: None)
    net(torch.ones(1, 1))


def test_the_errors_are_torchs_own_words() -> None:
    answers = [answer for answer, _ in SYMPTOMS["torch raises an error"].answers]
    for raises, words in zip((post_accumulate_returns, in_place_behind_full, legacy_then_full), answers, strict=True):
        with pytest.raises(RuntimeError, match=words):
            raises()


def test_uncalled_names_the_three_ways_around_a_call() -> None:
    at = dict(SYMPTOMS["My hook is not called"].answers)["yes"]
    assert isinstance(at, Ask)
    ways = dict(at.answers)["no"]
    assert isinstance(ways, Ask)
    assert all(isinstance(cure, Cure) for _, cure in ways.answers)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head, self.steps = nn.LayerNorm(1), nn.Linear(1, 1), nn.ModuleList([nn.Linear(1, 1)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.linear(self.norm.forward(x), self.head.weight)
            for step in self.steps:
                x = step(x)
            return x

    model = Around()
    with hookscope.capture(model, "*") as seen:
        model(torch.ones(1, 1))
    assert {*seen.uncalled} == {"norm", "head", "steps"}


# What is wrong in the boxes of chapter 11 -> the cause that the diagnosis of the layer names first.
IN_BOXES = {
    "never": "weight_used",
    "no hook": "no_hook",
    "hooks": "registered_again",
    "calls": "called_often",
    "returns": "replaced",
    "pre": "replaced",
    "overwritten": "overwritten",
    "input": "fires",
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", IN_BOXES)
def test_a_diagnosis_opens_the_path_of_the_mistake_in_a_box(kind: str, layer: str) -> None:
    box = next(box for box in BOXES if kind in box.kinds)
    puzzle = Puzzle(box, layer, kind)
    with torch.no_grad():
        tree = SymptomTree(puzzle.model, layer, torch.tensor([[1.0, 2.0]]))
    assert tree.diagnosis is not None
    assert tree.diagnosis.cause == IN_BOXES[kind]
    assert tuple(tree.path) == PLACES["pre_hook" if kind == "input" else IN_BOXES[kind]]
    assert tree.cure is not None
    first = tree.diagnosis.findings[0]
    for text in (first.sentence, first.evidence):
        assert text in tree.alt
        assert text in repr(tree)
    assert tree.numbers()[0]["write"] == first.write


def reader() -> tuple[nn.Module, torch.Tensor]:
    """The network of section 1, with a hook on each part."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
            self.steps = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm.forward(self.stem(x))
            for step in self.steps:
                x = step(x)
            return nn.functional.linear(x, self.head.weight, self.head.bias)

    model = Reader()
    for part in model.children():
        part.register_forward_hook(lambda module, args, output: None)
    return model, torch.ones(1, 4)


def test_the_four_hooks_of_section_1() -> None:
    model, x = reader()
    causes = {name: hookscope.diagnose(model, name, x).cause for name, _ in model.named_children()}
    assert causes == {"stem": "fires", "norm": "forward_called", "steps": "never_called", "head": "weight_used"}


def test_every_place_is_a_path_of_the_tree_and_a_cause_of_a_diagnosis() -> None:
    ends = {(symptom, *(answer for _, answer in way)) for symptom, way, _ in paths()}
    assert {*PLACES.values()} <= ends
    assert {*PLACES} <= {*CAUSES}
    attention = nn.MultiheadAttention(4, 2)
    tree = SymptomTree(attention, "out_proj", *[torch.ones(2, 4)] * 3)
    assert tree.diagnosis is not None
    assert (tree.diagnosis.cause, tree.path) == ("never_called", [])


def test_a_model_without_a_layer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"without a layer. Write SymptomTree\(model, 'layer', x\)"):
        SymptomTree(nn.Linear(1, 1))
