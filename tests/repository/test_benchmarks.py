"""The benchmarks judge and measure what they say; how fast anything is, is no matter of tests."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import __main__ as command
from benchmarks import correct, other, speed
from benchmarks.tools import TOOLS

README = (Path(command.__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("tool", "model", "verdict"),
    [
        ("hooks that keep references", "conv, then relu in place", "WRONG"),
        ("hooks that clone", "conv, then relu in place", "right"),
        ("hooks that copy to warm buffers", "LSTM tuple", "right"),
        ("TraceDict, cloning", "shared conv called twice", "partial"),
        ("torchvision extractor", "data-dependent while loop", "fails"),
        ("**hookscope**, first capture", "data-dependent while loop", "right"),
        ("**hookscope**, same capture again", "functional y += 1", "right"),
    ],
)
def test_verdicts(tool: str, model: str, verdict: str) -> None:
    assert correct.judge(tool, model) == verdict


def test_every_pass_runs_and_takes_its_hooks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    ours = {name: tool for name, tool in TOOLS.items() if tool.__name__ not in speed.PEERS}  # the peers are elsewhere
    monkeypatch.setattr(speed, "TOOLS", ours)
    for backward in (False, True):
        speed_of = dict(speed.passes(model, backward))
        assert speed.PLAIN in speed_of
        assert ("hooks that copy to warm buffers" in speed_of) != backward
        for run in speed_of.values():
            with torch.set_grad_enabled(backward):
                run(torch.ones(2, 4))
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0
    assert model[0].weight.grad is not None


def test_the_other_figures_are_numbers() -> None:
    assert other.entering(1) > 0
    assert all(figure > 0 for figure in (*other.per_layer(1), *other.grids(1)))


def test_the_tables_have_their_places() -> None:
    for part in ("made", "correct", "speed", "other"):
        assert re.search(rf"<!-- {part} -->\n.*?<!-- /{part} -->", README, re.DOTALL), part
    assert command.markdown([{"a": 1, "b": "x"}, {"a": 2}]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | – |"


def test_the_tables_are_of_the_tools_that_are_here() -> None:
    named = set(re.findall(r"^\| (\S.*?) \|", README, re.MULTILINE))
    assert set(TOOLS) <= named
