"""The symptom tree: every way ends in a cure, its tools exist, and what torch is said to say, it says."""

from __future__ import annotations

import ast
import warnings

import pytest
import torch
from torch import nn

import hookscope
from hookscope_course.figures import SymptomTree
from hookscope_course.figures.symptom_tree.symptoms import SYMPTOMS, Ask, Cure, paths


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
