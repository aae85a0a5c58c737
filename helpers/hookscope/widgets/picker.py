"""Pick a layer of a model, and see what flowed through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import traitlets
from torch import Tensor, nn

from hookscope.captures.call import Call, NotCapturedError
from hookscope.layers import LayerNotFoundError
from hookscope.layers.suggestions import not_found
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import assets, show_errors
from hookscope.widgets.channel_maps import (
    ChannelPage,
    draw_channel,
    draw_channels,
    draw_input,
    list_facts,
    sort_channels,
    to_dense,
)
from hookscope.widgets.code_panel import CodeWidget, write_output_code
from hookscope.widgets.goal import parts_of
from hookscope.widgets.model_pass import ModelPass
from hookscope.widgets.module_rows import format_warnings, list_modules

__all__ = ["LayerPicker"]

ACTIVATION, GRADIENT, PRODUCT = SHOWS = ("activation", "gradient", "activation × gradient")
ORDERS = ("index", "mean", "max", "zeros")
SCALES = ("channel", "shared")
# In the order in which one follows from the other: each may set back what stands behind it.
_CHOICES = (
    "layer", "call", "part", "channels_last", "show", "target", "sample", "order", "scale", "per_page", "page",
)  # fmt: skip
_MOST_BYTES = 4 << 30
_CONSTANT = (
    "These gradients are 0{}. That sum stays the same, whatever this layer returns: so it is before a softmax, or "
    "before a layer norm with equal weights, as it has untrained; what these return has the same sum for every input. "
    "For gradients that say something, give a model that returns scores of classes, or one number for each sample."
)


class LayerPicker(CodeWidget):
    """Choose a layer of a model and see its feature maps, with their numbers.

    The model runs once, in `eval()`, when the picker is made; every pick is served from that pass. Press "Run again",
    or call `run()`, after the model has changed. Choosing a gradient runs it once more, and backward from the score of
    a class; `goal` says which. Scores are a tensor of shape (N, classes) that the model returned, by name `logits`
    first. If there is none, the gradient is that of the sum of a tensor that it returned.

    Everything that can be clicked is also a property, so a later cell can go on with what was chosen:
    ``picker.activation[picker.sample, picker.channel]``.

    Args:
        model: any module. Its training flags, parameters and their `.grad` stay as they are.
        *args: positional arguments of the model.
        classes: names of the classes in the output.
        kwargs: keyword arguments of the model, as ``{"attention_mask": mask}``.
        max_bytes: refuse a pass that would keep more than this, 4 GiB by default; None for no limit.
        gradient_of: a tensor of the output, as `"['logits']"`, or a function that makes one number of the output.
        **chosen: traits to begin with, for example ``layer="layer1.0.conv1"``.

    Attributes:
        layer: the dotted name of the chosen layer, `""` for the model itself.
        call: which call of the layer, from 1.
        part: which tensor of its output: `""` for the only one, else for example `"[0]"` or `"['low']"`.
        sample: which sample of the batch.
        channel: the channel that is shown large; -1 for none.
        show: `"activation"`, `"gradient"` or `"activation × gradient"`.
        target: the class whose score the gradient is of; -1 for the highest score of each sample.
        order: `"index"`, or by `"mean"`, `"max"` or share of `"zeros"`, largest first.
        page: which page of channels, from 0.
        per_page: how many channels a page has.
        scale: `"channel"` if each map has its own scale, `"shared"` for one scale.
        channels_last: whether 4-D outputs are read as (N, H, W, C).
        channels: the channels on the page.
        goal: what the gradient is of, in words; `""` while no gradient is shown.
        notices: what else to know of the picture, and what the model warned about.
        more: whether the further choices are open on the page.
        code: the plain torch lines that capture `activation`, from `model` and `x`, or `inputs` and `kwargs`.

    Raises:
        WrongInputError: a ValueError; the model cannot run on these inputs: what it expects, and the way out.
        TypeError, ValueError: as `hookscope.capture`; and what the model raises.
        LayerNotFoundError: there is no such layer; or it was not called, and why that may be.
        MemoryError: the pass would keep more than `max_bytes`; says the way out.

    Example:
        >>> from hookscope import samples
        >>> picker = LayerPicker(samples.digit_cnn(), samples.digit(5), layer="block1.conv")
        >>> picker
        LayerPicker DigitCNN: block1.conv (Conv2d), activation (1, 16, 28, 28), all 16 channels
        >>> picker.channel = 3
        >>> picker.activation[picker.sample, picker.channel].shape
        torch.Size([28, 28])

    """

    tree: traitlets.List[Any] = traitlets.List().tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    call = traitlets.Int(1).tag(sync=True)
    part = traitlets.Unicode().tag(sync=True)
    sample = traitlets.Int(0).tag(sync=True)
    channel = traitlets.Int(-1).tag(sync=True)
    show = traitlets.Unicode(ACTIVATION).tag(sync=True)
    target = traitlets.Int(-1).tag(sync=True)
    order = traitlets.Unicode("index").tag(sync=True)
    page = traitlets.Int(0).tag(sync=True)
    per_page = traitlets.Int(64).tag(sync=True)
    scale = traitlets.Unicode("channel").tag(sync=True)
    channels_last = traitlets.Bool(False).tag(sync=True)
    more = traitlets.Bool(False).tag(sync=True)

    _again = traitlets.Int(0).tag(sync=True)  # how often the page has asked to run again
    width = traitlets.Int(640).tag(sync=True)  # pixels there are for the maps

    # What there is to choose from, and what is shown; written here, read by the page.
    calls = traitlets.Int(1).tag(sync=True)
    parts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    samples = traitlets.Int(1).tag(sync=True)
    pages = traitlets.Int(1).tag(sync=True)
    targets: traitlets.List[Any] = traitlets.List().tag(sync=True)
    channels: traitlets.List[Any] = traitlets.List().tag(sync=True)
    boxes: traitlets.List[Any] = traitlets.List().tag(sync=True)
    size: traitlets.List[Any] = traitlets.List([1, 1]).tag(sync=True)
    caption = traitlets.Unicode().tag(sync=True)
    goal = traitlets.Unicode().tag(sync=True)
    notices: traitlets.List[Any] = traitlets.List().tag(sync=True)
    facts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    large = traitlets.Bytes(b"").tag(sync=True)
    large_alt = traitlets.Unicode().tag(sync=True)
    input_png = traitlets.Bytes(b"").tag(sync=True)
    input_alt = traitlets.Unicode().tag(sync=True)

    _esm, _css = assets("picker")

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        classes: Sequence[str] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        max_bytes: int | None = _MOST_BYTES,
        gradient_of: str | Callable[[Any], Tensor] | None = None,
        **chosen: Any,
    ) -> None:
        traits = (*_CHOICES, "channel", "more")
        kwargs = check_kwargs(LayerPicker, kwargs, [name for name in chosen if name not in traits], traits)
        self._is_updating = True
        self._pass = ModelPass(model, args, kwargs, max_bytes, gradient_of, len(classes or ()) or None)
        self._pass.run()
        self._classes = list(classes) if classes is not None else None
        self._names = {name: module for module, name in self._pass.capture.modules.names.items()}
        self._gradient_target: int | None = None
        self._page: ChannelPage | None = None
        self._input_sample = -1  # the sample whose picture is shown
        super().__init__()
        self._show_modules()
        self._is_updating = False
        with self.hold_sync():
            self.layer = chosen.get("layer", self._choose_layer())
            if self._page is None and not self.problem:  # "" is what the trait held before: nobody was told
                self._update()
            for name in (*_CHOICES[1:], "channel", "more"):
                if name in chosen:
                    setattr(self, name, chosen[name])

    # -- what was chosen ----------------------------------------------------------------------------------------

    @property
    def activation(self) -> Tensor:
        """The chosen tensor of the chosen call's output, all samples; detached."""
        return to_dense(parts_of(self._get_call().output)[self.part])

    @property
    def gradient(self) -> Tensor:
        """The gradient of what `goal` says with respect to `activation`, in its shape.

        Raises:
            ValueError: no gradient arrives there.

        """
        self._run_backward()
        try:
            grads = parts_of(self._get_call().grad)
        except NotCapturedError as error:  # it speaks of a with-block, and here is none
            raise ValueError(
                f"no gradient arrives at {self._format_title()}: it requires none, or what the gradient is of does not "
                "depend on it"
            ) from error
        if self.part not in grads:
            raise ValueError(f"no gradient arrives at this part of {self._format_title()}")
        return to_dense(grads[self.part])

    @property
    def shown(self) -> Tensor:
        """What the maps are of: `activation`, `gradient`, or their product."""
        if self.show == ACTIVATION:
            return self.activation
        gradient = self.gradient  # first: it may take a new pass, which the activation must be of, too
        return gradient if self.show == GRADIENT else self.activation * gradient

    @show_errors
    def run(self) -> None:
        """Run the model again, with the weights and hooks it has now."""
        self._gradient_target = None
        self._pass.run()
        with self.hold_sync():
            self._show_modules()
            if self.layer not in self._pass.capture:
                self.layer = self._choose_layer()
            self._update()

    def close(self) -> None:
        """Take the widget off the page and let go of what it holds."""
        super().close()
        self._pass = None  # type: ignore[assignment]
        self._page = None

    def summary(self) -> str:
        """Say which layer of which model is shown, and which channels of it."""
        if self._page is None:
            return f"LayerPicker {type(self._pass.model).__name__ if self._pass else 'closed'}"
        shape = tuple(self._page.shape)
        of = f", sample {self.sample} of 0 to {self.samples - 1}" if self.samples > 1 else ""
        what = f"{self._format_title()}, {self.show} {shape}{of}, {self._page.which}"
        return f"LayerPicker {self._pass.capture.title}: {what}"

    def numbers(self) -> Rows:
        """List min, max, mean and zeros of every channel on the page."""
        return list(self.rows)

    # -- from a choice to a picture -----------------------------------------------------------------------------

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Any) -> str:
        name: str = proposal.value
        if name in self._names and (self._is_updating or name in self._pass.capture):
            return name
        if name in self._names:
            raise LayerNotFoundError(
                f"layer {name!r} {self._pass.capture.uncalled.get(name, 'cannot be hooked')}", name
            )
        raise not_found(self._names, name, f"no layer {name!r}")

    @traitlets.validate("show", "order", "scale")
    def _check_option(self, proposal: Any) -> str:
        allowed = {"show": SHOWS, "order": ORDERS, "scale": SCALES}[proposal.trait.name]
        return str(_check(proposal, proposal.value in allowed, f"give {', '.join(map(repr, allowed))}"))

    @traitlets.validate("per_page")
    def _check_per_page(self, proposal: Any) -> int:
        return int(_check(proposal, 1 <= proposal.value <= 256, "give 1 to 256"))

    @traitlets.validate("call", "sample", "page", "channel", "target", "part")
    def _check_number(self, proposal: Any) -> Any:
        if self._is_updating:
            return proposal.value
        name = proposal.trait.name
        if name == "part":
            return _check(proposal, proposal.value in self.parts, f"there are {', '.join(map(repr, self.parts))}")
        low, high = {
            "call": (1, self.calls),
            "sample": (0, self.samples - 1),
            "page": (0, self.pages - 1),
            "channel": (-1, (self._page.count if self._page else 0) - 1),
            "target": (-1, len(self.targets) - 1),
        }[name]
        return _check(proposal, low <= proposal.value <= high, f"give {low} to {high}")

    @traitlets.observe(*_CHOICES, "width")
    def _on_choice(self, change: Any) -> None:
        if self._is_updating:
            return
        with self._hold_updates():
            if change.name == "layer":
                self.call, self.part, self.page, self.channel = 1, "", 0, -1
                self.part = next(iter(parts_of(self._get_call().output)), "")
            elif change.name in ("call", "part", "channels_last"):
                self.page, self.channel = 0, -1
            elif change.name in ("order", "per_page"):
                self.page = 0
        self._update()

    @traitlets.observe("_again")
    def _run_again(self, change: Any) -> None:
        self.run()

    @traitlets.observe("channel")
    def _on_channel(self, change: Any) -> None:
        if not self._is_updating:
            self._show_channel()

    @contextmanager
    def _hold_updates(self) -> Iterator[None]:
        """Change what follows from a choice, without drawing each time."""
        before, self._is_updating = self._is_updating, True
        try:
            yield
        finally:
            self._is_updating = before

    @show_errors
    def _update(self) -> None:
        """Draw the choice, and say what else there is to choose."""
        with self.hold_sync(), self._hold_updates():
            self.goal, self.notices, self.code = "", [], ""
            self.calls = len(self._pass.capture[self.layer].calls)
            self.call = min(self.call, self.calls)
            found = parts_of(self._get_call().output)
            self.parts = list(found)
            if not found:
                raise ValueError(f"the output of {self._format_title()} holds no tensor")
            if self.part not in found:
                self.part = next(iter(found))
            self.code = self._write_code()
            shown = self.shown
            self.samples = len(shown) if shown.dim() > 1 else 1
            self.sample = min(self.sample, self.samples - 1)
            signed = self.show != ACTIVATION
            channels = sort_channels(shown, self.sample, self.order, self.channels_last)
            self.pages = max(1, math.ceil(len(channels) / self.per_page))
            self.page = min(self.page, self.pages - 1)
            page = channels[self.page * self.per_page :][: self.per_page]
            drawn = draw_channels(
                shown, self.sample, page, self.scale, signed, self.channels_last, self._format_title(), self.width
            )
            self._page = drawn
            self.channels, self.boxes, self.size = drawn.channels, drawn.boxes, list(drawn.size)
            self.caption, self.rows = drawn.caption, drawn.rows
            written = self._pass.capture.overwritten.get(self._get_call().label)
            self.facts = list_facts(shown, self.sample, type(self._names[self.layer]).__name__, written)
            self._describe_gradient()
            self.png, self.alt = drawn.png, drawn.alt
            if self.channel >= drawn.count:
                self.channel = -1
            self._show_input()
            self._show_channel()

    def _show_channel(self) -> None:
        if self._page is None or self.channel < 0:
            self.large, self.large_alt = b"", ""
            return
        with self.catch_errors():
            picture = draw_channel(self.shown, self.sample, self.channel, self.show != ACTIVATION, self.channels_last)
            self.large, self.large_alt = picture.png, f"{self._format_title()}, {picture.alt}"

    def _show_input(self) -> None:
        if self.sample == self._input_sample and self.input_png:
            return
        self._input_sample = self.sample
        image = next((image for arg in self._pass.args if (image := draw_input(arg, self.sample)) is not None), None)
        self.input_png, self.input_alt = image or (b"", "")

    def _write_code(self) -> str:
        """Write the plain torch lines that capture `activation`."""
        pick = f"output = output{self.part}  # the part that you chose" if self.part else ""
        end = f"activation = outputs[{self.layer!r}][{self.call - 1}]"
        return write_output_code(self.layer, pick, end, self._pass.args, self._pass.kwargs)

    def _describe_gradient(self) -> None:
        """Say what the gradient is of, and what else there is to know."""
        goal, graded = self._pass.goal, self.show != ACTIVATION
        name = self.targets[self.target] if 0 <= self.target < len(self.targets) else ""
        self.goal = f"The gradient is that of {goal.in_words(self.target, name)}." if goal and graded else ""
        notes = format_warnings(self._pass.warnings)
        if graded and goal and not goal.classes and len(self.gradient):
            largest = float(self.gradient.abs().max())
            if self._pass.is_rounding(self._get_call().label, self.part, largest):
                notes.insert(
                    0, _CONSTANT.format(f"; what is left of them, up to {largest:.0e}, is rounding" if largest else "")
                )
            elif goal.shape and bool((self.gradient == 1).all()):
                notes.insert(0, "Each value here counts once in that sum, so its gradient is 1 everywhere.")
        self.notices = notes

    def _run_backward(self) -> None:
        if self._gradient_target != self.target:
            goal = self._pass.goal
            self._pass.run_backward(None if self.target < 0 else self.target)
            self._gradient_target = self.target
            if self._pass.goal is not goal:
                self._show_targets()

    def _get_call(self) -> Call:
        return self._pass.capture[self.layer].calls[self.call - 1]

    def _format_title(self) -> str:
        call = f", call {self.call}" if self.calls > 1 else ""
        return f"{self.layer or 'the model'} ({type(self._names[self.layer]).__name__}){call}{self.part}"

    def _choose_layer(self) -> str:
        seen = self._pass.capture
        with_maps = (row["name"] for row in self.tree if row["maps"] and row["leaf"])
        return str(next(with_maps, next(iter(seen), "")))

    def _show_modules(self) -> None:
        """Tell the page about the modules, and about the classes."""
        self.tree = list_modules(self._names, self._pass.capture)
        self._show_targets()

    def _show_targets(self) -> None:
        count = self._pass.goal.classes if self._pass.goal else 0
        names = self._classes or [str(index) for index in range(count)]
        if self._classes is not None and len(self._classes) != count:
            raise ValueError(f"{len(self._classes)} names for {count} classes: give one for each, or leave out classes")
        self.targets = [str(name) for name in names]


def _check(proposal: Any, fine: bool, hint: str) -> Any:
    if not fine:
        raise ValueError(f"{proposal.trait.name}={proposal.value!r}: {hint}")
    return proposal.value
