"""Record what widgets answer to each thing a reader can choose, so that they work in a page without a kernel.

The widget in the page is the one of the notebooks, script and all. Its model is a stand-in (`site.js`) that knows the
answers: for each combination of choices that was recorded, what changed in the widget's state. The answers come from
the real widget and a real model; nothing is computed in the page.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import traitlets

from hookscope import samples
from hookscope.widgets import LayerPicker, PatchMap, TokenPicker
from hookscope.widgets.base import HookWidget
from hookscope_course.figures import AuthorSlider, GradientPlayground, GradInputExplorer, PlayingMap
from hookscope_course.figures.kit.replay import Choice, Replay

_OWN = ("_model_", "_view_", "_dom_classes", "_anywidget", "layout", "tabbable", "tooltip", "_request", "_response")
MAX_CHARACTERS = 1_400_000  # characters that a page loads for one widget


def _every_layer_and_channel(picker: Any) -> Iterator[Choice]:
    for choice in _every_layer(picker):
        yield choice
        yield from ({"channel": channel} for channel in list(picker.channels))


def _every_layer(picker: Any) -> Iterator[Choice]:
    for row in picker.tree:
        if not row["why"]:
            yield {"layer": row["name"], "channel": -1}


def _every_cell(patches: Any) -> Iterator[Choice]:
    for layer, (column, *_) in product(patches._layers, patches._columns):
        yield {"layer": layer, "column": column}


def _every_token(picker: Any, *more: str) -> Iterator[Choice]:
    options = {
        "show": [value for value, _ in picker._shows],
        "look": ["lines", "map"],
        "head": range(picker._heads or 1),
        "layer": picker._layers,
        "token": range(len(picker._tokens)),
    }
    chosen = {name: each if name in more else [getattr(picker, name)] for name, each in options.items()}
    chosen |= {name: options[name] for name in ("layer", "token")}
    yield from (dict(zip(chosen, values, strict=True)) for values in product(*chosen.values()))


def _every_head(picker: Any) -> Iterator[Choice]:
    yield from _every_token(picker, "head")


def _every_view(picker: Any) -> Iterator[Choice]:
    yield from _every_token(picker, "head", "show", "look")


# The widgets of the package do not know the site; the figures of the course bring their own `replay`.
_OF_THE_PACKAGE: dict[type[HookWidget], Replay] = {
    LayerPicker: Replay(
        ("layer", "channel"),
        {
            "Layers and channels are answered from a recording of the real widget; *More choices* needs a kernel "
            "(`make lab`).": _every_layer_and_channel,
            "Layers are answered from a recording of the real widget; channels and *More choices* need a kernel "
            "(`make lab`).": _every_layer,
        },
        quiet=("width", "more"),
    ),
    TokenPicker: Replay(
        ("layer", "token", "head", "show", "look"),
        {
            "Your choices are answered from a recording of the real widget; a text of your own needs a kernel "
            "(`make lab`).": _every_view,
            "Layers, tokens and heads are answered from a recording of the real widget; the rest needs a kernel "
            "(`make lab`).": _every_head,
            "Layers and tokens are answered from a recording of the real widget; the rest needs a kernel "
            "(`make lab`).": _every_token,
        },
        quiet=("width",),
    ),
    PatchMap: Replay(
        ("layer", "column", "sample", "position"),
        {
            "Cells are answered from a recording of the real widget; other positions of the output need a kernel "
            "(`make lab`).": _every_cell
        },
        unseen=("png",),
    ),
}


def get_replay(widget: HookWidget) -> Replay | None:
    """Return how a widget is recorded; None for a widget that is not."""
    own: Replay | None = getattr(widget, "replay", None)
    return own or next((each for kind, each in _OF_THE_PACKAGE.items() if isinstance(widget, kind)), None)


def read_story() -> TokenPicker:
    """A text that the story model reads."""
    options: dict[str, Any] = {"tokenizer": samples.story_tokens, "vocabulary": samples.STORY_WORDS}
    return TokenPicker(samples.story_lm(), "the dogs near the cat", **options)


Choices = Callable[[Any], Iterable[Choice]]


@dataclass(frozen=True)
class LiveWidget:
    """A widget for the page of widgets: its name, what it is as a reader would ask for it, what to do with it."""

    name: str
    heading: str
    words: str
    make: Callable[[], HookWidget]


LIVE_WIDGETS = (
    LiveWidget(
        "layer_picker",
        "What does each layer make of a picture?",
        "Choose a layer of a small CNN that reads handwritten digits, then click one of its channels.",
        lambda: LayerPicker(samples.digit_cnn(), samples.digit(5)),
    ),
    LiveWidget(
        "playing_map",
        "Do you know the order?",
        "Before each step of one pass, click the hook that fires next.",
        lambda: PlayingMap(["forward_pre", "forward", "full_backward"], guess=True),
    ),
    LiveWidget(
        "token_picker",
        "What would a language model say at each depth?",
        "Choose a token and a layer of a small language model: the words that it would say there, and where it looks.",
        read_story,
    ),
    LiveWidget(
        "grad_input",
        "What does a backward hook get as grad_input?",
        "Choose a layer and its input, and compare a legacy hook with a full one.",
        GradInputExplorer,
    ),
    LiveWidget(
        "versions",
        "Which release of torch did the author have?",
        "Choose one of the five documents, and move through the releases: what of it was true when?",
        lambda: AuthorSlider("D0", "1.7.1"),
    ),
)


def record_within_limit(widget: HookWidget, name: str) -> tuple[str, str] | None:
    """Record as much of a widget as a page can carry.

    Returns:
        The script for the page, and a sentence on what it answers; None where that is too much, or where nobody knows
        how to record such a widget.

    """
    recipe = get_replay(widget)
    if recipe is None:
        return None
    for words, choices in recipe.choices.items():
        before = {control: getattr(widget, control) for control in recipe.controls}
        try:
            found = record_widget(widget, name, recipe, choices)
        except TooMuchError:
            continue
        finally:
            _put_back(widget, before)
        script = f"(window.hookscopeLive ??= {{}})[{name!r}] = {json.dumps(found, ensure_ascii=False)};\n"
        if len(script) < MAX_CHARACTERS:
            return script, words
    return None


def _put_back(widget: HookWidget, before: Choice) -> None:
    """Leave a widget as it was: the next cell goes on with it."""
    for control, value in before.items():  # one may be refused until another is set
        with contextlib.suppress(ValueError):
            setattr(widget, control, value)
    for control, value in before.items():
        setattr(widget, control, value)


class TooMuchError(Exception):
    """There are more choices than a page can carry the answers of."""


def record_widget(widget: HookWidget, name: str, recipe: Replay, choices: Choices) -> dict[str, Any]:
    """Run a widget through all choices, and return what the page needs.

    Returns:
        name; controls, quiet, free: as the recipe has them. esm, css: the widget's script and style. state: all traits
        as they are at first. answers: for the values of all controls, as JSON, the traits that differ from these.
        alone: the same for the first control, where the widget sets the others by itself. values: what is long, once,
        where the others have {"is": its index}.

    Raises:
        TooMuchError: it would be more than `MAX_CHARACTERS` characters.

    """
    start = _get_state(widget, recipe.unseen)
    answers: dict[str, dict[str, Any]] = {}
    alone: dict[str, dict[str, Any]] = {}
    values: dict[str, int] = {}
    size = 0
    for choice in choices(widget):
        first = next(iter(choice))
        for control, value in choice.items():
            if getattr(widget, control) == value:
                continue
            try:
                setattr(widget, control, value)
            except (ValueError, traitlets.TraitError):  # such as a bias for a layer that has none
                break
            if control == first == recipe.controls[0]:
                other = _list_changes(start, _get_state(widget, recipe.unseen))
                alone.setdefault(_encode_key([control, value]), _share_long_values(other, values, 1))
        else:
            if not widget.problem:
                now = _get_state(widget, recipe.unseen)
                known = len(values)
                answer = _share_long_values(_list_changes(start, now), values, 1)
                answers[_encode_key([now[control] for control in recipe.controls])] = answer
                size += len(json.dumps(answer)) + sum(map(len, islice(reversed(values), len(values) - known)))
                if size > MAX_CHARACTERS:
                    raise TooMuchError(name)
    known_too = {"name": name, "controls": list(recipe.controls), "quiet": list(recipe.quiet), "free": recipe.free}
    states = {"state": _share_long_values(start, values), "answers": answers, "alone": alone}
    return known_too | {"esm": str(widget._esm), "css": str(widget._css), "values": [*map(json.loads, values)]} | states


def _share_long_values(states: Any, values: dict[str, int], depth: int = 0) -> Any:
    """Put what is long into `values`, once, and its number in its place."""
    text = json.dumps(states, ensure_ascii=False)
    if len(text) > 40 and not (isinstance(states, dict) and depth < 4 and "base64" not in states):
        return {"is": values.setdefault(text, len(values))}
    return (
        {name: _share_long_values(value, values, depth + 1) for name, value in states.items()}
        if isinstance(states, dict)
        else states
    )


def _encode_key(values: list[Any]) -> str:
    """As JSON.stringify writes it: 1, not 1.0."""
    values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def _list_changes(start: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if value != start[name]}


def _get_state(widget: HookWidget, unseen: Collection[str] = ()) -> dict[str, Any]:
    """All that the page may ask for, as JSON; bytes in base64."""
    names = [name for name in widget.keys if not name.startswith(_OWN) and name not in unseen]
    return {name: _convert_to_json(getattr(widget, name)) for name in sorted(names)} | {"_request": 0, "_response": 0}


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode("ascii")}
    return json.loads(json.dumps(value))


def make_kernel_widgets() -> Iterator[HookWidget]:
    """The widgets that compute too much to be recorded, each as it begins."""
    yield GradientPlayground()


def get_first_sentence(widget: HookWidget) -> str:
    """What a widget is for: the first sentence of its documentation."""
    return (inspect.getdoc(type(widget)) or "").partition("\n")[0]
