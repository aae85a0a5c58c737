"""The benchmarks judge and measure what they say; how fast anything is, is no matter of tests."""

import re

import pytest
import torch
from torch import nn

from benchmarks import __main__ as command
from benchmarks import attentions, capture_loops, correct, edit_costs, edits, other, picker, speed, sweeps
from benchmarks.tools import TOOLS
from tests.shared.lab import CHROMIUM
from tools.page_blocks import block

OURS = {name: tool for name, tool in TOOLS.items() if tool.__name__ not in speed.PEERS}
"""The tools without the peers, which are installed elsewhere."""


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
    monkeypatch.setattr(speed, "TOOLS", OURS)
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


def tables(part: str) -> list[tuple[list[str], list[str]]]:
    """The heads of the columns and the first cells of the rows of each table in a part of the page that is made."""
    found = []
    for text in re.findall(r"(?:^\|.*\n?)+", block(command.README, part), re.MULTILINE):
        heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
        found.append(([head.strip("| ") for head in heads], [row[0].strip("| ") for row in rows]))
    return found


def test_the_table_of_verdicts_is_what_the_command_makes() -> None:
    ((heads, rows),) = tables("correct")
    assert heads == ["tool", "right", "WRONG", "partial", "fails", "not right on"]
    assert rows == [label for label in TOOLS if label not in correct.SKIPPED]


def test_the_tables_of_what_changes_a_model_are_what_the_command_makes() -> None:
    (heads, rows), costs = tables("changes")
    assert heads[:2] == ["tool", "right, or refused"]
    assert rows == list(edits.EDITORS)
    assert costs == (["what", "measured"], list(command.CHANGES))


@pytest.mark.parametrize(
    ("tool", "case", "expected"),
    [
        ("plain hooks", "a channel", "right"),
        ("plain hooks", "a layer that is never called", "not applied"),
        ("plain hooks", "Identity beside a skip", "wrong"),
        ("baukit's way", "a gradient", "cannot"),
        ("**hookscope**", "Identity beside a skip", "right"),
        ("**hookscope**", "a layer that is never called", "refused"),
    ],
)
def test_editors_are_judged(tool: str, case: str, expected: str) -> None:
    assert edits.verdict(edits.EDITORS[tool], edits.CASES[case])[0] == expected


@pytest.mark.slow
def test_what_changes_cost_is_a_number_and_both_do_the_same() -> None:
    for stay in (True, False):
        net = nn.Sequential(nn.Linear(4, 4))
        assert edit_costs.editing(net, torch.ones(1, 4), ["0"], 1, stay) > 0
        assert not net[0]._forward_hooks
    seconds, ratio, apart = edit_costs.sweeping(8, 1)
    assert min(seconds, ratio) > 0
    assert apart < 1e-5
    assert edit_costs.attending(8, 2, 1, 4, 1) > 0


@pytest.mark.parametrize(
    ("tool", "case", "expected"),
    [
        ("plain hooks in a loop", "a model of no known family", "right"),
        ("plain hooks in a loop", "a buffer that each pass changes", "wrong"),
        ("plain hooks in a loop", "a layer that is never called", "not applied"),
        ("baukit's way, in a loop", "dropout in eval() beside a skip", "wrong"),
        ("baukit's way, in a loop", "a layer that is never called", "refused"),
        ("**hookscope**", "a branch that depends on the values", "right"),
        ("**hookscope**", "a layer that is never called", "refused"),
    ],
)
def test_sweeps_are_judged(tool: str, case: str, expected: str) -> None:
    assert sweeps.verdict(sweeps.SWEEPERS[tool], sweeps.CASES[case])[0] == expected


def test_a_sweep_that_patches_nothing_is_not_applied_and_one_beside_it_is_wrong() -> None:
    case = sweeps.CASES["subtracting the mean over samples"]

    def untouched(case: sweeps.SweepCase, model: nn.Module) -> torch.Tensor:
        return case.table([case.baseline() for _ in case.cells])

    def shifted(case: sweeps.SweepCase, model: nn.Module) -> torch.Tensor:
        return sweeps.plain_hooks(case, model) + 1e-3

    assert sweeps.verdict(untouched, case)[0] == "not applied"
    assert sweeps.verdict(shifted, case)[0] == "wrong"


@pytest.mark.slow
def test_tools_that_sweep_are_timed_where_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {label: sweeps.SWEEPERS[label] for label in ("plain hooks in a loop", "**hookscope**")}
    monkeypatch.setattr(sweeps, "SWEEPERS", ours | {"wrong": lambda case, model: torch.zeros(1, 12)})
    took = sweeps.times(sweeps.timed(8, ["transformer.h.0"]), 1)
    assert took["plain hooks in a loop"].endswith(" s")
    assert float(took["**hookscope**"].removesuffix(" ×")) > 0
    assert took["wrong"] == ""


@pytest.mark.parametrize(
    ("tool", "case", "expected"),
    [
        ("transformers' own", "GPT-2, sdpa", "right"),
        ("transformers' own", "MultiheadAttention", "cannot"),
        ("plain hooks", "GPT-2, sdpa", "not seen"),
        ("plain hooks", "TransformerEncoderLayer, fused, with padding", "right"),
        ("baukit's way", "MultiheadAttention", "wrong"),
        ("**hookscope**", "Llama, grouped queries, padded on the left", "right"),
        ("**hookscope**", "TransformerEncoderLayer, fused, with padding", "right"),
        ("**hookscope**", "a custom module, softmax by hand", "right"),
        ("**hookscope**", "a custom module, exponentials by their sum", "says so"),
    ],
)
def test_lookers_are_judged(tool: str, case: str, expected: str) -> None:
    assert attentions.verdict(attentions.LOOKERS[tool], attentions.CASES[case])[0] == expected


def test_looking_takes_time_that_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {label: attentions.LOOKERS[label] for label in ("plain hooks", "**hookscope**")}
    monkeypatch.setattr(attentions, "LOOKERS", ours)
    monkeypatch.setattr(attentions, "SIZES", {"small": (8, 2, 1, 4)})
    sdpa, eager = (attentions.times("small", each, 1) for each in (False, True))
    assert sdpa["plain hooks"] == ""
    assert all(float(each.removesuffix(" ×")) > 0 for each in (sdpa["**hookscope**"], *eager.values()))


def test_the_tables_of_sweeps_and_attention_are_what_the_command_makes() -> None:
    if not tables("sweeps") or not tables("attention"):
        pytest.skip("run: make bench, which has not written these tables yet")
    ((heads, rows),) = tables("sweeps")
    assert heads[:2] == ["tool", "right, or refused"]
    assert sweeps.TIMED in heads
    assert rows == list(sweeps.SWEEPERS)
    ((heads, rows),) = tables("attention")
    assert heads[:4] == ["tool", "right", "says so", "not seen"]
    assert rows == list(attentions.LOOKERS)


def test_each_part_says_what_it_was_made_with() -> None:
    assert list(command.MADE) == list(command.PARTS)


def test_the_tables_of_time_and_memory_are_what_the_command_makes() -> None:
    expected = []
    for backward in command.KINDS.values():
        expected += 2 * [(["tool", *command.columns(backward)], speed.labels(backward))]
    assert tables("speed") == expected, "run: make bench"


def test_the_table_of_fresh_captures_is_what_the_command_makes() -> None:
    ((heads, rows),) = tables("fresh")
    assert heads == ["tool", *capture_loops.COLUMNS]
    assert rows == list(capture_loops.FRESH)


def test_a_fresh_capture_is_timed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def timed(tool: str, batch: int, settings: dict[str, str]) -> tuple[float, float]:
        asked.append((tool, batch, bool(settings)))
        return 1.0 + batch, 2.0 if settings else 3000.0

    monkeypatch.setattr(capture_loops, "alone", timed)
    rows = capture_loops.table(3)
    assert len(asked) == 3 * len(set(asked)) == 3 * len(capture_loops.FRESH) * len(capture_loops.COLUMNS)
    assert [row["tool"] for row in rows] == list(capture_loops.FRESH)
    assert list(rows[0].values())[1:] == ["2.00 (3,000)", "2.00 (2)", "9.00 (3,000)", "9.00 (2)"]


@pytest.mark.slow
def test_a_process_says_a_ratio_and_how_many_pages_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_loops, "PASSES", {1: 1})
    ratio, pages = capture_loops.alone(capture_loops.FRESH[0], 1, capture_loops.KEPT)
    assert 0.5 < ratio < 10
    assert pages >= 0


def test_the_table_of_the_rest_is_what_the_command_makes() -> None:
    assert tables("other") == [(["what", "measured"], list(command.OTHERS))]


def test_no_figure_of_a_measurement_stands_outside_the_tables() -> None:
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", command.README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.findall(r"\d[\d.]* ?(?:×|ms|MB|µs|s\b|%)", text)
    assert len(re.findall(r"<!-- \w+ -->", command.README.read_text(encoding="utf-8"))) == len(command.PARTS)


@pytest.mark.slow
def test_a_column_that_was_measured_gets_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "TOOLS", OURS)
    rows = speed.measure(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), backward=False, rounds=1)
    times: command.Columns = {}
    memory: command.Columns = {}
    command.enter(rows, "small, batch 2", times, memory)
    assert times[speed.PLAIN]["small, batch 2"].endswith(" ms")
    assert list(times) == [str(row["tool"]) for row in rows]
    assert 0 < float(times["plain forward, once more"]["small, batch 2"]) < 100
    assert memory[speed.PLAIN]["small, batch 2"].endswith(" MB")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="it needs a browser")
def test_a_layer_is_picked_in_both_ways() -> None:
    picked, dropped = picker.waits(1)
    assert picked > 0
    assert dropped > 0
