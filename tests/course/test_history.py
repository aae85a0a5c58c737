"""How hooks behave is recorded for every release of torch; a torch that behaves otherwise is an alarm."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import warnings
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from hookscope_course.figures import history_chart as chart
from hookscope_course.figures.author_slider.figure import AuthorSlider
from hookscope_course.history import authors, facts, records
from lessons.build import lesson_source
from tools import history as make

CLAIMS = authors.read_dated_claims()
# Of these claims one half hangs on the release, and the other is wrong in each: that the engine calls module.backward()
# (D0.8), and that a legacy hook returns a Variable (D4.8).
HALVES = {"D0.8": "true", "D4.8": "not true"}
ONE = {"1.0.0": {"forward_hook_returns": "60"}}

# What shared knowledge says of the turning points, from runs that somebody else made: value, and the last release
# before it changed, the first after.
KNOWN = [
    ("forward_hook_returns", "1.1.0", "RuntimeError: forward hooks should never return any values", "1.2.0", "60"),
    ("pre_hook_returns", "1.1.0", "6", "1.2.0", "60"),
    ("full_hook_grad_input", "1.7.1", "missing", "1.8.0", "15, 10"),
    ("full_hook_plain_input", "1.8.0", "does not fire", "1.9.0", "(None,)"),
    ("full_hook_plain_input_warning", "2.7.0", "none", "2.8.0", "UserWarning"),
    ("full_hook_after_legacy", "1.7.1", "missing", "1.8.0", "RuntimeError: Cannot use both"),
    ("legacy_warning", "1.7.1", "none", "1.8.0", "UserWarning"),
    ("legacy_warning", "2.3.0", "UserWarning", "2.4.0", "FutureWarning"),
    ("retain_grad_then_hook", "1.13.1", "1", "2.0.0", "10"),
    ("forward_hook_prepend", "1.13.1", "missing", "2.0.0", "2 1"),
    ("forward_hook_with_kwargs", "1.13.1", "missing", "2.0.0", "1 args"),
    ("forward_hook_always_call", "2.0.0", "missing", "2.1.0", "fires"),
    ("post_accumulate_hook", "2.0.0", "missing", "2.1.0", "1"),
    ("multi_grad_hook_any", "2.2.0", "missing", "2.3.0", "1"),
    ("ddp_comm_hook", "1.7.1", "missing", "1.8.0", "yes"),
    ("legacy_linear_1d", "2.0.0", "[5], [5]", "2.1.0", "[1, 5]"),
    ("legacy_linear_3d", "1.9.0", "[2, 7, 5], [5]", "1.13.1", "[14, 5]"),
    ("node_linear_1d", "2.0.0", "AddBackward0 < SqueezeBackward", "2.1.0", "ViewBackward0 < AddmmBackward0"),
    ("node_conv", "1.0.0", "MkldnnConvolutionBackward", "1.7.1", "ThnnConv2DBackward"),
    ("node_conv", "1.7.1", "ThnnConv2DBackward", "1.13.1", "ConvolutionBackward0"),
]
STEADY = {
    "legacy_linear_2d": "[5], [7, 160], [160, 5]",
    "legacy_conv": "None, [10, 3, 2, 2], [10]",
    "legacy_conv_requiring": "[1, 3, 8, 8], [10, 3, 2, 2], [10]",
}
APPEARED = [
    ("hooks_of_graph", "saved_tensors_hooks", "1.10.0"),
    ("hooks_of_module", "register_load_state_dict_post_hook", "1.12.0"),
    ("hooks_of_module", "register_full_backward_pre_hook", "2.0.0"),
    ("hooks_of_graph", "register_multi_grad_hook", "2.0.0"),
    ("hooks_of_optimizer", "register_step_pre_hook", "2.0.0"),
    ("hooks_of_all_modules", "register_module_parameter_registration_hook", "2.0.0"),
    ("hooks_of_tensor", "register_post_accumulate_grad_hook", "2.1.0"),
    ("hooks_of_module", "register_state_dict_post_hook", "2.5.0"),
    ("hooks_of_graph", "node_creation_hook", "2.14.0"),
    ("hooks_of_graph", "queue_callback", "2.15.0"),
]


@cache
def run_alone() -> dict[str, object]:
    command = [sys.executable, str(make.FACTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers: dict[str, object] = json.loads(done.stdout)
    return answers


# -- the alarm ----------------------------------------------------------------------------------------------------


def test_the_installed_torch_answers_as_recorded() -> None:
    said = records.describe_deviations(torch.__version__, run_alone())
    assert not said, said


def test_the_alarm_says_what_changed_which_chapters_teach_it_and_what_to_do() -> None:
    said = records.describe_deviations("1.0.0+cu1", {"forward_hook_returns": "6"}, ONE)
    assert said.splitlines() == [
        "Your torch 1.0.0 does not answer as the record of torch 1.0.0 says.",
        "- A layer computes 6, and its forward hook returns 60: what does the caller get? (forward_hook_returns)",
        "  The record of torch 1.0.0 says: 60",
        "  Your torch 1.0.0 says now: 6",
        "  Taught in chapter 03.",
        "Correct those chapters, then renew the record: make history RELEASES=1.0.0",
    ]


def test_a_release_without_a_record_is_held_against_the_newest_one() -> None:
    recorded = {"1.9.0": {"pre_hook_returns": "6"}, "1.10.0": {"pre_hook_returns": "60"}}
    assert records.describe_deviations("9.9.9", {"pre_hook_returns": "60"}, recorded) == ""
    said = records.describe_deviations("9.9.9", {}, recorded)
    assert "The record of torch 1.10.0 says: 60" in said
    assert "Your torch 9.9.9 says now: missing" in said
    assert "make history RELEASES=9.9.9" in said


def test_a_release_is_held_against_its_own_record_and_without_one_against_another_patch() -> None:
    recorded = {"1.9.0": {"pre_hook_returns": "6"}, "1.9.1": {"pre_hook_returns": "60"}, "1.10.0": {}}
    assert records.describe_deviations("1.9.0", {"pre_hook_returns": "6"}, recorded) == ""
    assert records.describe_deviations("1.9.2", {"pre_hook_returns": "60"}, recorded) == ""


def test_every_chapter_that_a_fact_names_exists() -> None:
    numbers = {int(lesson_source.name_of(path)[:2]) for path in lesson_source.chapter_files()}
    for name, one in facts.FACTS.items():
        assert one.chapters, name
        assert set(one.chapters) <= numbers, name


# -- the facts ----------------------------------------------------------------------------------------------------


def test_the_file_of_facts_is_python_3_6_and_needs_only_torch() -> None:
    tree = ast.parse(make.FACTS.read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {"torch"} <= sys.stdlib_module_names


def test_every_fact_is_a_question_with_a_label_of_its_own() -> None:
    assert len({one.label for one in facts.FACTS.values()}) == len(facts.FACTS)
    for name, one in facts.FACTS.items():
        assert one.question.endswith("?"), name
        assert len(one.label) <= 40, name


def test_the_answers_are_the_same_again_and_name_nothing_of_this_machine() -> None:
    text = json.dumps(facts.run())
    assert text == json.dumps(facts.run()) == json.dumps(run_alone())
    assert not re.search(r"0x[0-9a-f]{4}|/\w+/|line \d", text)


def test_a_fact_that_fails_answers_with_its_error_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise ValueError(f"no luck with {fails}. More.\nAnd more.")

    kept = {"fails": facts.Fact(fails, "fails", (1,)), "order": facts.FACTS["forward_hook_order"]}
    monkeypatch.setattr(facts, "FACTS", kept)
    assert facts.run() == {"fails": "ValueError: no luck with <function>", "order": "1 2 3"}


# -- the records --------------------------------------------------------------------------------------------------


def test_the_records_are_complete() -> None:
    found = records.read_records()
    assert {*found["versions"], *found["not_installed"]} >= {*make.RELEASES}
    assert [*found["versions"]] == sorted(found["versions"], key=records.parse_release)
    assert [*found["versions"][records.get_newest_release()]["answers"]] == [*facts.FACTS]
    assert len(records.full_history()) >= 47, "a fact that is added later has the newest release alone"
    for release, record in found["versions"].items():
        assert [*record["answers"]] == [name for name in facts.FACTS if name in record["answers"]], release
        assert {*records.full_history()} <= {*record["answers"]}, release
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["made_on"]), release
        assert record["made_by"].startswith(records.COMMAND), release
        assert record["python"] == make.RELEASES.get(release, make.NEWEST_PYTHON)


@pytest.mark.parametrize(("name", "before", "old", "after", "new"), KNOWN)
def test_known_turning_points(name: str, before: str, old: str, after: str, new: str) -> None:
    answers = records.history(name)
    assert answers[before].startswith(old)
    assert answers[after].startswith(new)
    assert old != answers[after]


@pytest.mark.parametrize("name", STEADY)
def test_known_steady_answers(name: str) -> None:
    assert set(records.history(name).values()) == {STEADY[name]}


@pytest.mark.parametrize(("name", "function", "since"), APPEARED)
def test_known_first_appearances(name: str, function: str, since: str) -> None:
    having = [release for release, answer in records.history(name).items() if function in answer]
    assert having[0] == since
    assert having[-1] == records.get_newest_release()


def test_an_unknown_fact_is_named() -> None:
    with pytest.raises(KeyError, match=r"no fact 'x'; there are forward_hook_returns"):
        records.history("x")


# -- the claims that hang on the release ----------------------------------------------------------------------------


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.id}-{claim.fact}")
def test_each_claim_can_be_judged_in_every_release(claim: authors.DatedClaim) -> None:
    for answer in {*records.history(claim.fact).values(), records.get_current_answers()[claim.fact]}:
        assert claim.judge(answer) in authors.SIGNS
    with pytest.raises(ValueError, match=r"answers 'quite new'; say in history/claims\.toml"):
        claim.judge("quite new")


def test_the_newest_standing_agrees_with_the_verdict_of_the_course() -> None:
    rows = tomllib.loads((lesson_source.LESSONS / "90_claims" / "claims.toml").read_text(encoding="utf-8"))["claim"]
    verdicts = {row["id"]: row["verdict"] for row in rows}
    for identity in {claim.id for claim in CLAIMS}:
        halves = [claim for claim in CLAIMS if claim.id == identity]
        found = {claim.judge(records.history(claim.fact)[records.get_newest_release()]) for claim in halves}
        expected = {"holds": {"true"}, "outdated": {"not true"}, "wrong": {"not true"}}
        if verdicts[identity] == "partly":
            alone = HALVES.get(identity)
            assert found == {alone} if alone else found == {"partly true"} or len(found) > 1, identity
        else:
            assert found == expected[verdicts[identity]], identity


# -- what a learner sees ------------------------------------------------------------------------------------------


def test_the_chart_says_in_words_and_numbers_what_it_shows() -> None:
    picture = chart.chart(["pre_hook_returns", "full_hook_plain_input"], "Two", marked="1.2.0")
    assert "pre-hook returns a value: 6, from 1.2.0 on 60" in picture.alt
    assert "full hook, plain input: not there yet, from 1.8.0 on does not fire, from 1.9.0 on (None,)" in picture.alt
    assert picture.alt.endswith("The column with 1.2.0 is framed.")
    assert [(row["since torch"], row["answer"]) for row in picture.rows] == [
        ("1.0.0", "6"),
        ("1.2.0", "60"),
        ("1.0.0", "missing"),
        ("1.8.0", "does not fire"),
        ("1.9.0", "(None,)"),
    ]
    assert picture.png == chart.chart(["pre_hook_returns", "full_hook_plain_input"], "Two", marked="1.2.0").png
    assert picture.png != chart.chart(["pre_hook_returns", "full_hook_plain_input"], "Two").png


def test_what_changed_without_an_error_comes_first() -> None:
    names = chart.by_danger("1.7.1")
    assert sorted(names) == sorted(chart.changing())
    assert {*names[:2]} == {"retain_grad_then_hook", "tensor_hook_autograd_grad"}
    assert {*names[2:4]} == {"legacy_linear_1d", "legacy_linear_3d"}
    assert names[4] == "legacy_warning"
    with_labels, without = (chart.chart(names[:5], "Five", then=then) for then in ("1.7.1", ""))
    assert with_labels.png != without.png
    assert with_labels.rows == without.rows


@pytest.mark.parametrize("names", [chart.changing(), *([each.fact] for each in CLAIMS[:4])])
def test_each_bar_has_its_answer_in_words_in_it_or_below_it(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict[str, float]()
    text = ImageDraw.ImageDraw.text

    def note(pen: Any, at: Any, words: str, *args: Any, **options: Any) -> None:
        drawn[words] = at[0] + ImageFont.load_default(size=chart._WORDS).getlength(words)
        text(pen, at, words, *args, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    picture = chart.chart(names, "All", "1.2.0")
    for name in names:
        for answer in records.changes(name).values():
            words = chart._shorter(answer)[0]
            assert any(each == words or each.endswith(f": {words}") for each in drawn), (name, answer)
    assert max(drawn.values()) <= Image.open(io.BytesIO(picture.png)).width == 584, "a page in JupyterLab"


def test_bars_cover_the_releases_with_one_answer() -> None:
    answers = [*records.history("node_linear_1d").values()]
    bars = chart._bars(answers, [[at] for at in range(len(answers))])
    assert [bar.when for bar in bars[:3]] == ["1.0 to 1.11", "1.12", "1.13.1"]
    assert bars[-1].when == "since 2.15"
    assert [bar.shade for bar in bars[:3]] == [0, 1, 0], "the first answer came back"
    assert sum(bar.columns for bar in bars) == len(answers)
    assert all(a.first + a.columns == b.first for a, b in pairwise(bars))


def test_the_slider_can_be_driven_and_says_the_same_before_it_runs() -> None:
    slider = AuthorSlider("D3", "2.0.0")
    halves = [row["torch 2.0.0"] for row in slider.rows if row["claim"] == "D3.13"]
    assert halves == ["✗ not true", "✓ true"]
    slider.release = "2.1.0"
    halves = [row["torch 2.1.0"] for row in slider.rows if row["claim"] == "D3.13"]
    assert halves == ["✓ true", "✗ not true"]
    before = slider.png
    slider.document = "D1"
    assert slider.verdict.startswith("D1 makes 1 claim that depends on the release of torch. True in torch 2.1.0: 1. ")
    assert slider.png != before
    data, _ = slider._repr_mimebundle_()
    assert slider.alt in data["text/html"]
    assert "D1.5" in data["text/html"]
    assert data["text/plain"] == repr(slider)


def test_the_slider_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"no record of torch '0\.4'; there are 1\.0\.0"):
        AuthorSlider("D0", "0.4")
    with pytest.raises(ValueError, match="no document 'D9'; there are D0, D1, D3, D4"):
        AuthorSlider("D9")
    slider = AuthorSlider()
    assert (slider.document, slider.release) == ("D0", records.get_newest_release())
    with pytest.raises(ValueError, match="no record of torch '3'"):
        slider.release = "3"
    assert slider.release == records.get_newest_release()


@pytest.mark.parametrize("name", authors.read_snippets())
def test_a_snippet_prints_what_its_fact_answers(name: str) -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 2.0)
    names = {"torch": torch, "nn": torch.nn, "layer": layer}
    names |= {name: torch.tensor([value], requires_grad=True) for name, value in (("x", 3.0), ("a", 1.0))}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(authors.read_snippets()[name], names)
    said = re.sub(r"\.0\b", "", " ".join(printed.getvalue().split()))
    answer = records.get_current_answers()[name]
    assert said == answer.split(" <")[0] or said == answer.replace(", ", " ")
    assert len(authors.read_snippets()[name].splitlines()) <= 3


@pytest.mark.parametrize(
    "name",
    ["history.authors", "history.facts", "history.records", "figures.history_chart"],
)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"hookscope_course.{name}")).failed == 0


# -- make history ---------------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records and temporary files of its own, and no network."""
    for module in (make, records):
        monkeypatch.setattr(module, "RECORDS", tmp_path / "records.json")
    monkeypatch.setattr(make.signal, "signal", lambda *_: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    return tmp_path


def test_a_release_that_cannot_be_installed_is_one_line_and_the_next_one_goes_on(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(make, "RELEASES", {"9.9.9": here, "9.9.10": "3.99"})
    assert make.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"torch 9.9.9 on Python {here} …",
        "torch 9.9.9",
        "torch 9.9.10 on Python 3.99 …",
        "torch 9.9.10",
    ]
    assert "torch" in lines[1].partition("failed:")[2]
    assert lines[3].endswith("install Python 3.99 (`uv python install 3.99`) or put one on PATH")
    found = records.read_records()
    assert found["versions"] == {}
    assert [*found["not_installed"]] == ["9.9.9", "9.9.10"]
    assert str(workplace) not in json.dumps(found)
    assert [path.name for path in workplace.iterdir()] == ["records.json"]


def test_an_interrupt_leaves_no_environment_and_keeps_what_was_recorded(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def call(command: list[str], settings: dict[str, str], way_out: str = "") -> str:
        if command[1:3] == ["pip", "install"] and "torch==2.0.0" in command:
            raise KeyboardInterrupt
        if command[1] == "venv":
            Path(command[-1]).mkdir()
            made.append(Path(command[-1]))
        return '{"pre_hook_returns": "60"}'

    monkeypatch.setattr(make, "call", call)
    with pytest.raises(KeyboardInterrupt):
        make.main(["1.13.1", "2.0.0", "2.1.0"])
    assert len(made) == 2
    assert not any(path.exists() for path in made)
    assert [*records.read_records()["versions"]] == ["1.13.1"]


def test_a_renewal_that_fails_keeps_the_old_record(workplace: Path) -> None:
    record = {"python": "3.7", "made_on": "2026-01-01", "made_by": "make history", "answers": {}}
    make.store("1.10.0", record=record)
    make.store("1.9.0", reason="no luck")
    make.store("1.10.0", reason="no luck")
    assert records.read_records() == {"versions": {"1.10.0": record}, "not_installed": {"1.9.0": "no luck"}}
    make.store("1.9.0", record=record)
    assert [*records.read_records()["versions"]] == ["1.9.0", "1.10.0"]
    assert records.read_records()["not_installed"] == {}
