"""Pick a layer of a model, and see its feature maps or gradients."""

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
from hookscope.widgets.gradient_goal import parts_of
from hookscope.widgets.model_pass import ModelPass
from hookscope.widgets.module_rows import format_warnings, list_modules

__all__ = ["LayerPicker"]

ACTIVATION, GRADIENT, PRODUCT = SHOWS = ("activation", "gradient", "activation × gradient")
ORDERS = ("index", "mean", "max", "zeros")
SCALES = ("channel", "shared")
# A choice can reset the choices after it.
_CHOICES = (
    "layer", "call", "part", "channels_last", "show", "target", "sample", "order", "scale", "per_page", "page",
)  # fmt: skip
_MOST_BYTES = 4 << 30
_CONSTANT = (
    "These gradients are 0{}. The reason is that the sum above is the same for every input, as it is after a softmax, "
    "or after a layer norm with equal weights. For useful gradients, pass a model that returns class scores, or one "
    "number per sample."
)


class LayerPicker(CodeWidget):
    """Choose a layer of a model, and see its feature maps and their statistics.

    The model runs once, in `eval()`. If you choose a gradient, it runs again, forward and then backward from a class
    score. If the model has changed, press "Run again" or call `run()`. Every control is also an attribute that you can
    read and set, see https://hookscope.github.io/hookscope/limits/layer_picker.html

    Args:
        model: any module. Its training flags, parameters and their `.grad` stay the same.
        *args: positional arguments of the model.
        classes: names of the classes in the output.
        kwargs: keyword arguments of the model, such as ``{"attention_mask": mask}``.
        max_bytes: the maximum memory for the outputs of one pass, 4 GiB by default; None for no limit.
        gradient_of: a tensor of the output, such as `"['logits']"`, or a function that turns the output into a scalar.
        **chosen: attributes to start with, for example ``layer="layer1.0.conv1"``.

    Raises:
        WrongInputError: a ValueError; the model cannot run on these inputs.
        LayerNotFoundError: the layer does not exist, or was not called.
        MemoryError: the outputs need more than `max_bytes`.

    Example:
        >>> from hookscope import samples
        >>> picker = LayerPicker(samples.digit_cnn(), samples.digit(5), layer="block1.conv")
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

    _again = traitlets.Int(0).tag(sync=True)  # counts the clicks on "Run again"
    width = traitlets.Int(640).tag(sync=True)  # of the space for the maps, in pixels

    # Set here, read by the page: the options of the controls, and what is displayed.
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
    over = traitlets.Bytes(b"").tag(sync=True)  # the same channel, to lay over the input: alpha follows the value
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
        self._input_sample = -1  # the sample whose input image is shown
        super().__init__()
        self._show_modules()
        self._is_updating = False
        with self.hold_sync():
            self.layer = chosen.get("layer", self._choose_layer())
            if self._page is None and not self.problem:  # layer was "" before, so no observer ran
                self._update()
            for name in (*_CHOICES[1:], "channel", "more"):
                if name in chosen:
                    setattr(self, name, chosen[name])

    # -- the current choice -------------------------------------------------------------------------------------

    @property
    def activation(self) -> Tensor:
        """The chosen tensor of the chosen call's output, all samples; detached."""
        return to_dense(parts_of(self._get_call().output)[self.part])

    @property
    def gradient(self) -> Tensor:
        """The gradient with respect to `activation`, in the same shape. `goal` describes the value that it belongs to.

        Raises:
            ValueError: no gradient reaches this tensor.

        """
        self._run_backward()
        try:
            grads = parts_of(self._get_call().grad)
        except NotCapturedError as error:  # its message is about a with block
            raise ValueError(
                f"no gradient reaches {self._format_title()}. Its output does not require grad, or the score does not "
                "depend on it. Choose another layer, or another gradient_of="
            ) from error
        if self.part not in grads:
            raise ValueError(f"no gradient reaches this part of {self._format_title()}. Choose another part")
        return to_dense(grads[self.part])

    @property
    def shown(self) -> Tensor:
        """The tensor that the maps show: `activation`, `gradient`, or their product."""
        if self.show == ACTIVATION:
            return self.activation
        gradient = self.gradient  # first, because it can run the model again, which replaces the activation
        return gradient if self.show == GRADIENT else self.activation * gradient

    @show_errors
    def run(self) -> None:
        """Run the model again, with its current weights and hooks."""
        self._gradient_target = None
        self._pass.run()
        with self.hold_sync():
            self._show_modules()
            if not self._pass.calls_of(self.layer):
                self.layer = self._choose_layer()
            self._update()

    def close(self) -> None:
        """Remove the widget from the page, and release the model and its outputs."""
        super().close()
        self._pass = None  # type: ignore[assignment]
        self._page = None

    def summary(self) -> str:
        """Describe the current layer and its channels."""
        if self._page is None:
            return f"LayerPicker {type(self._pass.model).__name__ if self._pass else 'closed'}"
        shape = tuple(self._page.shape)
        of = f", sample {self.sample} of 0 to {self.samples - 1}" if self.samples > 1 else ""
        what = f"{self._format_title()}, {self.show} {shape}{of}, {self._page.which}"
        return f"LayerPicker {self._pass.capture.title}: {what}"

    def numbers(self) -> Rows:
        """List min, max, mean and zeros of every channel on the page."""
        return list(self.rows)

    # -- from a choice to an image ------------------------------------------------------------------------------

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Any) -> str:
        name: str = proposal.value
        if name in self._names and (self._is_updating or self._pass.calls_of(name)):
            return name
        if name in self._names:
            raise LayerNotFoundError(f"layer {name!r} {self._pass.why_missing(name)}", name)
        raise not_found(self._names, name, f"no layer {name!r}")

    @traitlets.validate("show", "order", "scale")
    def _check_option(self, proposal: Any) -> str:
        allowed = {"show": SHOWS, "order": ORDERS, "scale": SCALES}[proposal.trait.name]
        return str(_check(proposal, proposal.value in allowed, f"choose {', '.join(map(repr, allowed))}"))

    @traitlets.validate("per_page")
    def _check_per_page(self, proposal: Any) -> int:
        return int(_check(proposal, 1 <= proposal.value <= 256, "choose 1 to 256"))

    @traitlets.validate("call", "sample", "page", "channel", "target", "part")
    def _check_number(self, proposal: Any) -> Any:
        if self._is_updating:
            return proposal.value
        name = proposal.trait.name
        if name == "part":
            return _check(proposal, proposal.value in self.parts, f"choose {', '.join(map(repr, self.parts))}")
        low, high = {
            "call": (1, self.calls),
            "sample": (0, self.samples - 1),
            "page": (0, self.pages - 1),
            "channel": (-1, (self._page.count if self._page else 0) - 1),
            "target": (-1, len(self.targets) - 1),
        }[name]
        return _check(proposal, low <= proposal.value <= high, f"choose {low} to {high}")

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
        """Set several traits without drawing in between."""
        before, self._is_updating = self._is_updating, True
        try:
            yield
        finally:
            self._is_updating = before

    @show_errors
    def _update(self) -> None:
        """Draw the current choice, and update the options of the controls."""
        with self.hold_sync(), self._hold_updates():
            self.goal, self.notices, self.code = "", [], ""
            self.calls = len(self._pass.calls_of(self.layer))
            self.call = min(self.call, self.calls)
            found = parts_of(self._get_call().output)
            self.parts = list(found)
            if not found:
                raise ValueError(f"the output of {self._format_title()} contains no tensor. Choose another layer")
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
            overwritten_by = self._pass.capture.overwritten.get(self._get_call().label)
            self.facts = list_facts(shown, self.sample, type(self._names[self.layer]).__name__, overwritten_by)
            self._describe_gradient()
            self.png, self.alt = drawn.png, drawn.alt
            if self.channel >= drawn.count:
                self.channel = -1
            self._show_input()
            self._show_channel()

    def _show_channel(self) -> None:
        if self._page is None or self.channel < 0:
            self.large, self.over, self.large_alt = b"", b"", ""
            return
        with self.catch_errors():
            picture, self.over = draw_channel(
                self.shown, self.sample, self.channel, self.show != ACTIVATION, self.channels_last
            )
            self.large, self.large_alt = picture.png, f"{self._format_title()}, {picture.alt}"

    def _show_input(self) -> None:
        if self.sample == self._input_sample and self.input_png:
            return
        self._input_sample = self.sample
        image = next((image for arg in self._pass.args if (image := draw_input(arg, self.sample)) is not None), None)
        self.input_png, self.input_alt = image or (b"", "")

    def _write_code(self) -> str:
        """Write plain torch code that captures `activation`."""
        pick = f"output = output{self.part}  # the chosen part" if self.part else ""
        end = f"activation = outputs[{self.layer!r}][{self.call - 1}]"
        return write_output_code(self.layer, pick, end, self._pass.args, self._pass.kwargs)

    def _describe_gradient(self) -> None:
        """Describe the value whose gradient is computed, and collect the notices."""
        goal, graded = self._pass.goal, self.show != ACTIVATION
        name = self.targets[self.target] if 0 <= self.target < len(self.targets) else ""
        self.goal = f"Gradient of {goal.describe(self.target, name)}." if goal and graded else ""
        notices = [*self._pass.list_raised(), *format_warnings(self._pass.warnings)]
        if graded and goal and not goal.classes and self.gradient.numel():
            largest = float(self.gradient.abs().max())
            if self._pass.is_rounding(self._get_call().label, self.part, largest):
                notices.insert(
                    0, _CONSTANT.format(f" except for rounding errors up to {largest:.0e}" if largest else "")
                )
            elif goal.shape and bool((self.gradient == 1).all()):
                notices.insert(0, "Each value here is one term of that sum, so the gradient is 1 everywhere.")
        self.notices = notices

    def _run_backward(self) -> None:
        if self._gradient_target != self.target:
            goal = self._pass.goal
            self._pass.run_backward(None if self.target < 0 else self.target)
            self._gradient_target = self.target
            if self._pass.goal is not goal:
                self._show_targets()

    def _get_call(self) -> Call:
        return self._pass.calls_of(self.layer)[self.call - 1]

    def _format_title(self) -> str:
        call = f", call {self.call}" if self.calls > 1 else ""
        return f"{self.layer or 'the model'} ({type(self._names[self.layer]).__name__}){call}{self.part}"

    def _choose_layer(self) -> str:
        seen = self._pass.capture
        with_maps = (row["name"] for row in self.tree if row["maps"] and row["leaf"])
        return str(next(with_maps, next((name for name in seen if self._pass.calls_of(name)), "")))

    def _show_modules(self) -> None:
        """Send the list of modules and classes to the page."""
        self.tree = list_modules(self._names, self._pass)
        self._show_targets()

    def _show_targets(self) -> None:
        count = self._pass.goal.classes if self._pass.goal else 0
        names = self._classes or [str(index) for index in range(count)]
        if self._classes is not None and len(self._classes) != count:
            raise ValueError(
                f"classes has {len(self._classes)} names, but the model returns {count} scores. Pass {count} names, or "
                "leave out classes="
            )
        self.targets = [str(name) for name in names]


def _check(proposal: Any, is_valid: bool, hint: str) -> Any:
    if not is_valid:
        raise ValueError(f"{proposal.trait.name}={proposal.value!r}: {hint}")
    return proposal.value
