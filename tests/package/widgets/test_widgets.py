"""What all widgets promise, before anything is run and when a cell is run again."""

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

import ipywidgets
import pytest
import torch
from torch import nn

import hookscope
from hookscope import samples, widgets
from hookscope.widgets import base
from hookscope_course import scenes
from hookscope_course import widgets as course_widgets
from tests.shared import ROOT
from tests.shared.language import gpt2
from tests.shared.read import IDS, WORDS, Reader
from tools.blocks import block


def recording() -> object:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    with hookscope.record(model) as log:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
    return log


def attention() -> object:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    return hookscope.attention(layer, *[torch.linspace(0, 1, 12).view(1, 3, 4)] * 3)


def swept() -> object:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    _KEPT.append(net)  # a sweep does not keep its model
    return hookscope.sweep(
        net, torch.ones(1, 3), layers="*", source="zero", channels=range(4), metric=lambda y: y.sum()
    )


VERBS = {"plural verbs": ("run", "sleep"), "singular verbs": ("runs", "sleeps")}
_KEPT: list[nn.Module] = []
WIDGETS: dict[str, Callable[[], base.HookWidget]] = {
    "LayerPicker": lambda: widgets.LayerPicker(samples.digit_cnn(), samples.digit(5)),
    "OrderPlayer": lambda: widgets.OrderPlayer(recording()),
    "CallSource": lambda: course_widgets.CallSource(),
    "GradientPlayground": lambda: course_widgets.GradientPlayground(),
    "GradInputExplorer": lambda: course_widgets.GradInputExplorer(),
    "AttentionPicker": lambda: widgets.AttentionPicker(attention()),
    "PatchMap": lambda: widgets.PatchMap(swept()),
    "PlayingMap": lambda: scenes.PlayingMap(),
    "TenTimesGame": lambda: scenes.TenTimesGame(),
    "BothEnds": lambda: scenes.BothEnds(),
    "Bridge": lambda: scenes.Bridge(),
    "ResidualRiver": lambda: scenes.ResidualRiver(samples.story_lm()),
    "SealedModels": lambda: scenes.SealedModels(),
    "SymptomTree": lambda: scenes.SymptomTree(),
    "SteeredScans": lambda: scenes.SteeredScans(
        samples.digit_cnn(), "block3", {"none": torch.zeros(32, 7, 7)}, samples.digit(5), 8
    ),
    "SteeringSlider": lambda: scenes.SteeringSlider(
        samples.story_lm(), "blocks.0", torch.linspace(-0.01, 0.01, 64), "the baker near the cat", VERBS
    ),
    "CacheGrid": lambda: scenes.CacheGrid(gpt2(), "transformer.h.0"),
    "TravelMap": lambda: scenes.TravelMap(),
    "TwoRuns": lambda: scenes.TwoRuns(),
    "GradientParts": lambda: scenes.GradientParts(),
    "GradientParts twice": lambda: scenes.GradientParts("twice"),
    "the smallest": lambda: import_module("counter").Counter(),
    "TokenPicker": lambda: widgets.TokenPicker(Reader(), IDS, vocabulary=WORDS),
}


@pytest.fixture(scope="module", autouse=True)
def _smallest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The smallest widget of docs/authoring.md, as a contributor would copy it."""
    folder = tmp_path_factory.mktemp("counter")
    for end in ("py", "js"):
        text = block(ROOT / "docs" / "authoring.md", f"widget-{end}")
        (folder / f"counter.{end}").write_text(text.removeprefix(f"```{end}\n".replace("py", "python")).rstrip("`"))
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def test_these_are_all_widgets() -> None:
    assert set(WIDGETS) - {"the smallest", "GradientParts twice"} == {
        *widgets.__all__,
        *course_widgets.__all__,
        *scenes.__all__,
    } - {"find_layer", "hook_pass", "train_one_step"}
    assert hookscope.widgets is widgets


@pytest.mark.parametrize("name", WIDGETS)
def test_a_picture_with_words_and_numbers_stands_in_for_it(name: str) -> None:
    one, two = WIDGETS[name](), WIDGETS[name]()
    data, _ = one._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    html = data["text/html"]
    assert re.search(r'<img alt="[^"]{20,}"', html)
    assert "<table" in html
    assert len(one.numbers()) >= 2
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == repr(one) == repr(two)
    assert "0x" not in repr(one)
    assert two._repr_mimebundle_()[0]["text/html"] == html


@pytest.mark.parametrize("name", WIDGETS)
def test_nothing_is_left_when_its_cell_is_run_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for run in range(3):
        monkeypatch.setattr(base, "_get_cell", lambda run=run: (f"the cell of {name}", run))
        WIDGETS[name]()
        counts.append(len(ipywidgets.widgets.widget._instances))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("name", WIDGETS)
def test_an_error_in_a_callback_is_a_sentence_and_the_widget_lives(name: str) -> None:
    made = WIDGETS[name]()
    with made.catch_errors():
        raise ValueError("the reason\nand its details")
    assert made.problem == "ValueError: the reason"
    with made.catch_errors():
        pass
    assert made.problem == ""


@pytest.mark.parametrize("name", WIDGETS)
def test_its_script_is_one_module_and_loads_nothing(name: str) -> None:
    made = WIDGETS[name]()
    assert made._esm.count("export default") == 1
    assert not re.search(r"https?://|\bimport\b.*from|innerHTML", re.sub(r"http://www\.w3\.org/\S+", "", made._esm))
    assert "url(" not in made._css


@pytest.mark.parametrize("name", WIDGETS)
def test_without_a_kernel_it_says_that_all_cells_above_must_run(name: str) -> None:
    script = WIDGETS[name]()._esm
    assert "run the cells from the top down to this one" in script
    assert "Kernel → Restart Kernel and Run up to Selected Cell…" in script
    assert "run this cell again" not in script.lower()
