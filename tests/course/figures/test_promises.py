"""What every interactive figure promises: one table, one test for each promise."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import torch
import traitlets
from torch import nn

from hookscope import widgets
from hookscope.widgets import base
from hookscope_course import figures
from hookscope_course.figures import registry
from hookscope_course.learner.copies import STATE_FOLDER
from hookscope_course.practice import guess_results
from lessons.build import lesson_source
from tests.course.figures.table import FIGURES
from tests.shared import ROOT
from tests.shared.recording_helpers import list_hooks

REASONS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, traitlets.TraitError)
CLASS = re.compile(r"^class (\w+)\((?:HookWidget|LazyFigure|CodeWidget|Finder)\)", re.MULTILINE)


def make(name: str) -> Any:
    return FIGURES[name].make(FIGURES[name].model())


@cache
def fresh(name: str) -> Any:
    """Make a figure once, for tests that leave it as it is."""
    return make(name)


def set_all(figure: Any, traits: dict[str, Any]) -> None:
    for trait, value in traits.items():
        setattr(figure, trait, value)


def state_of(figure: Any) -> dict[str, Any]:
    """Everything that the page has, and that a reader without it has."""
    private = {"_request", "_response", "_esm", "_css", "layout", "problem"}
    shown = {"repr": repr(figure), "numbers": str(figure.numbers()), "still": figure.png}
    return shown | {name: value for name, value in figure.get_state().items() if name not in private}


@cache
def fresh_state(name: str) -> dict[str, Any]:
    """The state of a figure that nobody has touched: it takes long to draw."""
    return state_of(fresh(name))


def read(figure: Any) -> str:
    """What a reader without a kernel finds: the words and the numbers."""
    return f"{figure.alt}\n{figure!r}\n{figure.numbers()}"


@contextmanager
def nothing_changed(net: nn.Module, is_random: bool) -> Iterator[None]:
    """Check that a model keeps its hooks, modes, weights and gradients, and torch its random numbers."""
    modules = [*net.train().modules()]
    modules[-1].eval()
    modules[1].register_forward_hook(lambda *_: None)
    first, *others = net.parameters()
    first.grad = torch.ones_like(first)
    hooks, modes = list_hooks(net), [module.training for module in modules]
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    numbers = torch.get_rng_state()
    yield
    assert is_random or torch.equal(torch.get_rng_state(), numbers)
    assert list_hooks(net) == hooks
    assert [module.training for module in modules] == modes
    assert all(torch.equal(tensor, state[key]) for key, tensor in net.state_dict().items())
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(parameter.grad is None for parameter in others)


every_figure = pytest.mark.parametrize("name", FIGURES)


def test_these_are_all_figures() -> None:
    classes = {name for file in (ROOT / "helpers").rglob("*.py") for name in CLASS.findall(file.read_text("utf-8"))}
    classes -= {"CodeWidget", "Finder", "LazyFigure", "GuessWidget"}  # three bases, and the card of a question
    classes |= {"SwitchOff"}  # a SilenceChannel
    assert {name.partition(",")[0] for name in FIGURES} == classes | {"Counter"}
    assert {name for name in [*widgets.__all__, *figures.__all__] if name[0].isupper()} <= classes
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        figures.Other  # noqa: B018


def test_the_registry_says_which_chapters_show_a_figure() -> None:
    shown = {}
    for path in lesson_source.lesson_files():
        for name in set(re.findall(rf"\b({'|'.join(registry.FIGURES)})\(", path.read_text(encoding="utf-8"))):
            shown.setdefault(name, []).append(int(path.parent.name[:2]))
    assert {name: tuple(sorted(chapters)) for name, chapters in shown.items()} == {
        name: figure.chapters for name, figure in registry.FIGURES.items() if name not in ("Counter", "SwitchOff")
    }
    assert registry.FIGURES["SwitchOff"].chapters == (), "only the site shows it"


@pytest.mark.parametrize("name", sorted({*registry.FIGURES} - {"Counter"}))
def test_a_figure_is_a_folder_of_its_name(name: str) -> None:
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    assert registry.FIGURES[name].module == f"{folder}.figure"
    has_no_states = name == "FoolingSquare"  # 784 positions of 29 squares: the site shows its still image
    assert hasattr(registry.load(name), "replay") is not has_no_states
    assert {f"{folder}/{file}" for file in ("figure.js", "promises.py")} <= {
        path.relative_to(registry.FOLDER).as_posix() for path in registry.FOLDER.glob("*/*")
    }


def test_figures_are_imported_when_they_are_asked_for() -> None:
    code = "from hookscope_course import figures; import sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"anywidget", "torch"} & {*found.stdout.split()}


@every_figure
def test_a_picture_with_words_and_numbers_stands_in_for_it(name: str) -> None:
    one = fresh(name)
    data, _ = one._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == repr(one)
    assert "0x" not in repr(one)
    if FIGURES[name].has_picture:
        assert data["image/png"].startswith(b"\x89PNG")
        assert len(one.alt) > 20
        assert f'<img alt="{one.alt[:1000]}' in html.unescape(data["text/html"])
        assert ("<table" in data["text/html"]) == bool(one.numbers())
        assert one.numbers() or FIGURES[name].secret


@every_figure
def test_the_page_does_as_python_does_and_the_model_is_left_as_it_was(name: str) -> None:
    """What is set trait by trait is the same in one message."""
    row, was = FIGURES[name], fresh_state(name)
    net = row.model() or nn.Sequential(nn.Linear(1, 1))
    messages = [row.sets] if row.together else [{trait: value} for trait, value in row.sets.items()]
    with nothing_changed(net, row.is_random):
        python, page = row.make(net), row.make(net)
        set_all(python, row.sets)
        for number, message in enumerate(messages, 1):
            page.set_state({**message, "_request": number})
        assert (page.problem, python.problem, page._response) == ("", "", len(messages))
        state = state_of(python)
        assert state_of(page) == state
    for trait, value in row.sets.items():
        assert page.get_state([trait])[trait] == value
    assert bool(state["still"]) == row.has_picture
    changed = [key for key in ("still", "repr", "numbers", "alt") if state[key] != was[key]]
    assert bool(changed) == row.follows


@every_figure
def test_what_cannot_be_is_refused_and_nothing_moves(name: str) -> None:
    figure, before = fresh(name), fresh_state(name)
    traits = figure.get_state()
    for trait, value, words in FIGURES[name].refused:
        with pytest.raises(REASONS, match=re.escape(words)):
            setattr(figure, trait, value)
        assert figure.get_state() == traits, (trait, value)
    for act, words in FIGURES[name].calls:
        with pytest.raises(REASONS, match=re.escape(words)):
            act(figure)
        assert figure.get_state() == traits, words
    assert state_of(figure) == before


@pytest.mark.parametrize("name", [name for name, row in FIGURES.items() if row.secret or row.hidden])
def test_before_the_guess_nothing_is_told(name: str) -> None:
    row, figure = FIGURES[name], make(name)
    secrets, before = row.secret(figure) if row.secret else (), figure.png
    assert not [secret for secret in secrets if re.search(secret, read(figure))]
    if row.hidden:
        with pytest.raises(RuntimeError, match="hidden until you have guessed"):
            getattr(figure, row.hidden)
    if row.reveal:
        set_all(figure, row.reveal)
        assert [secret for secret in secrets if re.search(secret, read(figure))] or not secrets
        assert not row.hidden or (getattr(figure, row.hidden) and figure.png != before)
    for trait, value, words in row.final:
        with pytest.raises(REASONS, match=re.escape(words)):
            setattr(figure, trait, value)


KEPT = ("BothEnds", "CacheGrid", "GradientParts", "PlayingMap, guess", "SealedModels", "TenTimesGame", "TravelMap")


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith(KEPT)])
def test_a_restart_leaves_a_figure_where_the_learner_left_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guess_results, "get_notebook_folder", lambda: tmp_path)
    set_all(left := make(name), FIGURES[name].reveal or FIGURES[name].sets)
    assert read(make(name)) != read(left), "only a learner's copy keeps it"
    (tmp_path / STATE_FOLDER).mkdir()
    set_all(left := make(name), FIGURES[name].reveal or FIGURES[name].sets)
    assert state_of(make(name)) == state_of(left)
    file = tmp_path / STATE_FOLDER / "figures.json"
    spoiled = {figure: dict.fromkeys(traits, "spoiled") for figure, traits in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(spoiled))
    assert state_of(make(name)) == fresh_state(name)


@every_figure
def test_nothing_is_left_when_its_cell_runs_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for run in range(2):
        monkeypatch.setattr(base, "_get_cell", lambda run=run: (f"the cell of {name}", run))
        make(name)
        counts.append(len(ipywidgets.widgets.widget._instances))
    assert counts[0] == counts[1]


@every_figure
def test_an_error_in_a_callback_is_a_sentence_and_the_figure_goes_on(name: str) -> None:
    figure = fresh(name)
    with figure.catch_errors():
        raise ValueError("the reason\nand its details")
    assert figure.problem == "ValueError: the reason"
    with figure.catch_errors():
        pass
    assert figure.problem == ""


@every_figure
def test_its_script_is_one_module_and_loads_nothing(name: str) -> None:
    figure = fresh(name)
    assert figure._esm.count("export default") == 1
    script = figure._esm.replace("http://www.w3.org/2000/svg", "")  # the name of a kind of element: nothing is loaded
    assert not re.search(r"https?://|\bimport\b.*from|innerHTML", script)
    assert "url(" not in figure._css
    assert "Run → Run All Above Selected Cell" in script, "what it says without a kernel"
    assert "run this cell again" not in script.lower()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", [name for name, row in FIGURES.items() if row.boxes])
def test_all_boxes_stand_in_the_drawing_and_beside_each_other(name: str, narrow: bool) -> None:
    (width, height), boxes = FIGURES[name].boxes(narrow)
    for at, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x - w / 2 < x + w / 2 <= width
        assert 0 <= y - h / 2 < y + h / 2 <= height
        for left, top, wide, high in boxes[:at]:
            assert abs(x - left) >= (w + wide) / 2 or abs(y - top) >= (h + high) / 2
