"""Edit the input of a layer with sliders. The edit is a forward pre-hook whose code you can copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import traitlets
from torch import Tensor, nn

from hookscope.layers.find import Which, find_layers
from hookscope.pictures.picture import Rows, Table
from hookscope.pictures.words import count_text
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.widgets.pre_hook_images import (
    ImagePainter,
    Pixels,
    draw_poster,
    encode,
    format_percent,
    round_up,
    to_json_number,
)
from hookscope_course.widgets.pre_hook_run import HookedLayer, HookEffect, check_image

__all__ = ["PreHookPlayground"]

FOLDER = Path(__file__).parent
# In the order in which the hook applies them. The square comes last, so that shifts do not move it.
_SETTINGS = (
    "shift_rows", "shift_columns", "contrast", "brightness", "noise", "seed", "square", "row", "column",
)  # fmt: skip


class PreHookPlayground(HookWidget):
    """Edit the input of a layer with a forward pre-hook, and see how the prediction changes.

    Every change runs the model twice, without and with the hook in `code`, in `eval()` and without gradients. Your own
    hooks run, too. Attributes and details: docs/limits/pre_hook_playground.md.

    Args:
        model: a model that returns a tensor of scores (1, classes).
        image: a float tensor (C, H, W) or (1, C, H, W) with 1 or 3 channels.
        layer: the layer to hook, see `find_layers`; by default the model itself.
        classes: a name for each score; by default its index.
        top: the number of classes to show.

    Raises:
        TypeError: the image, the scores or the input of the layer are not such a tensor.
        ValueError: the image has a wrong shape, the layer was not called, or `classes` has a wrong length.
        LayerNotFoundError: the layer does not exist.

    Example:
        >>> from hookscope import samples
        >>> playground = PreHookPlayground(samples.digit_cnn(), samples.digit(5), top=2)
        >>> playground.square, playground.row, playground.column = 10, 4, 9
        >>> print(playground.code.splitlines()[4])
            x[..., 4:14, 9:19] = 0  # square: 10 rows from row 4, 10 columns from column 9

    """

    _esm, _css = assets(FOLDER / "pre_hook")

    brightness = traitlets.Float(0.0).tag(sync=True)
    contrast = traitlets.Float(1.0).tag(sync=True)
    noise = traitlets.Float(0.0).tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    square = traitlets.Int(0).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    shift_rows = traitlets.Int(0).tag(sync=True)
    shift_columns = traitlets.Int(0).tag(sync=True)

    _neutral = traitlets.Dict().tag(sync=True)  # the settings that change nothing
    code = traitlets.Unicode("").tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    answer = traitlets.Unicode("").tag(sync=True)
    bars: traitlets.List[Any] = traitlets.List().tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)
    width = traitlets.Int(0).tag(sync=True)
    reach = traitlets.Float(1.0).tag(sync=True)
    in_color = traitlets.Bool(False).tag(sync=True)
    original_png = traitlets.Bytes(b"").tag(sync=True)
    edited_png = traitlets.Bytes(b"").tag(sync=True)
    difference_png = traitlets.Bytes(b"").tag(sync=True)
    original_alt = traitlets.Unicode("").tag(sync=True)
    edited_alt = traitlets.Unicode("").tag(sync=True)
    difference_alt = traitlets.Unicode("").tag(sync=True)
    notes = traitlets.Dict().tag(sync=True)

    _ALTS: ClassVar = {
        "original": "What the layer gets without the hook",
        "edited": "What the layer gets with the hook",
        "difference": "Edited minus original",
    }

    def __init__(
        self,
        model: nn.Module,
        image: Tensor,
        layer: Which = "",
        classes: Sequence[str] | None = None,
        *,
        top: int = 10,
    ) -> None:
        found = find_layers(model, layer)
        if len(found) != 1:
            raise ValueError(
                f"layer={layer!r} picks {len(found)} layers: {', '.join(list(found)[:6])}. Pass the name of one of them"
            )
        if top < 1:
            raise ValueError(f"top={top} shows no class. Pass 1 or more")
        ((self._layer, module),) = found.items()
        self._model, self._image, self._top = model, check_image(image), top
        self._hooked = HookedLayer(model, module, self._layer, self._image)
        self._call = "model(image)" if image.ndim == 4 else "model(image[None])"
        self._error: Exception | None = None
        seen = self._run()
        self._effect: HookEffect | None = seen
        self._last_settings: tuple[object, ...] | None = self._settings()
        count = len(seen.before)
        if classes is not None and len(classes) != count:
            raise ValueError(
                f"classes has {len(classes)} names, but the model returns {count} scores. Pass one name for each score"
            )
        self._classes = [str(name) for name in (range(count) if classes is None else classes)]
        self._painter = ImagePainter(seen.original, self._image)
        where = f"the pre-hook of {self._layer}" if self._layer else "the pre-hook"
        super().__init__(
            height=seen.original.shape[-2],
            width=seen.original.shape[-1],
            in_color=self._painter.in_color,
            reach=round_up(self._painter.span),
            title=f"{type(model).__name__}: what {where} returns",
            _neutral={name: self.traits()[name].default_value for name in _SETTINGS},
            **self._list_traits(),
        )

    @property
    def edited(self) -> Tensor:
        """The input of the layer with the hook, in its first call.

        Raises:
            RuntimeError: the run failed with the current settings.

        """
        return self._get_effect().edited

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the scores with the hook, shape (classes,).

        Raises:
            RuntimeError: the run failed with the current settings.

        """
        return self._get_effect().after

    @property
    def original_probabilities(self) -> Tensor:
        """The softmax of the scores without the hook, shape (classes,).

        Raises:
            RuntimeError: the run failed with the current settings.

        """
        return self._get_effect().before

    def reset(self) -> None:
        """Reset all settings, so that the hook changes nothing."""
        with self.hold_sync(), self.hold_trait_notifications():
            for name, value in self._neutral.items():
                setattr(self, name, value)

    def summary(self) -> str:
        """Describe the edits, and the probabilities without and with the hook."""
        edits = [line.partition("# ")[2] for line in self._write_edits()] or ["no edit"]
        return repr(Table(self.numbers(), "\n".join([self.title, *edits, self.answer])))

    def numbers(self) -> Rows:
        """List the probability of each class in the widget, without and with the hook."""
        return [{"class": name, "original": format_percent(p), "edited": format_percent(q)} for name, p, q in self.bars]

    # Drawn on demand, because at each step of a slider it would take more time than the rest.
    @property
    def png(self) -> bytes:  # type: ignore[override]
        """The widget as one PNG; empty if the run failed. `numbers` has the numbers of the bars."""
        return encode(draw_poster(self._images, self.bars)) if self._images else b""

    # --- the hook, and the runs ------------------------------------------------------------------------------

    def _write_edits(self) -> list[str]:
        """Return the lines of the hook that change values, each with a comment."""
        lines = []
        down, right = self.shift_rows, self.shift_columns
        if down or right:
            lines.append(
                f"x = torch.nn.functional.pad(x, ({right}, {-right}, {down}, {-down}))"
                f"  # shift: {count_text(abs(down), 'row')} {'up' if down < 0 else 'down'}, "
                f"{count_text(abs(right), 'column')} to the {'left' if right < 0 else 'right'}"
            )
        if self.contrast != 1:
            lines.append(
                f"x = x.mean() + {_format_number(self.contrast)} * (x - x.mean())"
                f"  # contrast: times {self.contrast:.4g}"
            )
        if self.brightness != 0:
            sign = "-" if self.brightness < 0 else "+"
            lines.append(f"x = x {sign} {abs(self.brightness)!r}  # brightness: {self.brightness:+.4g}")
        if self.noise:
            lines.append(
                f"x = x + {self.noise!r} * torch.randn(x.shape, generator=torch.Generator().manual_seed({self.seed}))"
                f".to(x)  # noise: standard deviation {self.noise:.4g}, seed {self.seed}"
            )
        if self.square:
            rows, columns = min(self.square, self.height - self.row), min(self.square, self.width - self.column)
            lines.append(
                f"x[..., {self.row}:{self.row + rows}, {self.column}:{self.column + columns}] = 0"
                f"  # square: {count_text(rows, 'row')} from row {self.row}, "
                f"{count_text(columns, 'column')} from column {self.column}"
            )
        return lines

    def _write_hook(self) -> str:
        body = ["x = args[0].clone()  # a copy, so that the tensor of the caller does not change", *self._write_edits()]
        return "\n    ".join(
            ["def edit(module, args):", *body, "return (x, *args[1:])  # the layer gets this as its args"]
        )

    def _write_code(self) -> str:
        target = "model" + (f".get_submodule({self._layer!r})" if self._layer else "")
        return f"""\
import torch

{self._write_hook()}

model.eval()
handle = {target}.register_forward_pre_hook(edit)
try:
    with torch.no_grad():
        probabilities = {self._call}.softmax(dim=1)[0]
finally:
    handle.remove()
"""

    def _run(self) -> HookEffect:
        names: dict[str, Any] = {"torch": torch}
        # Run exactly the code that the widget shows.
        exec(compile(self._write_hook(), "<pre-hook>", "exec"), names)
        return self._hooked.run(names["edit"])

    # --- what changes ----------------------------------------------------------------------------------------

    @traitlets.validate(*_SETTINGS)
    def _check_setting(self, proposal: dict[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        low, high = {
            "noise": (0, math.inf),
            "seed": (0, 2**63 - 1),
            "square": (0, max(self.height, self.width)),
            "row": (0, self.height - 1),
            "column": (0, self.width - 1),
            "shift_rows": (1 - self.height, self.height - 1),
            "shift_columns": (1 - self.width, self.width - 1),
        }.get(name, (-math.inf, math.inf))
        if not (math.isfinite(value) and low <= value <= high):
            want = "0 or more" if name == "noise" else f"{low} to {high}" if high < math.inf else "a finite number"
            size = f", because the input of the layer has {self.height} rows and {self.width} columns"
            sized = name not in ("noise", "seed", "brightness", "contrast")
            raise traitlets.TraitError(f"{name}={value} is not valid{size * sized}. Pass {want}")
        return value

    @traitlets.observe(*_SETTINGS)
    @show_errors
    def _on_change(self, change: object) -> None:
        # If several traits are set together, all are set before the first call, so one run is enough.
        if self._settings() != self._last_settings:
            self._last_settings = self._effect = self._error = None
            try:
                self._effect = self._run()
            except Exception as error:
                self._error = error
            with self.hold_sync():
                for name, value in self._list_traits().items():
                    setattr(self, name, value)
            self._last_settings = self._settings()
        if self._error is not None:
            raise self._error

    def _settings(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in _SETTINGS)

    def _get_effect(self) -> HookEffect:
        if self._effect is None:
            raise RuntimeError(
                f"the run with these settings failed ({self.problem}). Call playground.reset() to undo them"
            )
        return self._effect

    # --- what is shown ---------------------------------------------------------------------------------------

    def _list_traits(self) -> dict[str, Any]:
        """Return the traits with the result."""
        self._images: dict[str, Pixels] = {}
        if self._effect is None:
            empty = {f"{name}_png": b"" for name in self._ALTS} | {f"{name}_alt": "" for name in self._ALTS}
            return empty | {"notes": {}, "bars": [], "answer": "No result.", "alt": "", "code": self._write_code()}
        seen, notes = self._effect, {}
        self._images["original"], notes["original"] = self._painter.paint(seen.original)
        self._images["edited"], notes["edited"] = self._painter.paint(seen.edited)
        self._images["difference"], notes["difference"] = ImagePainter.difference(seen.edited, seen.original)
        alts = {name: f"{what}: {notes[name]}." for name, what in self._ALTS.items()}
        answer = f"original: {self._describe_top_class(seen.before)} · edited: {self._describe_top_class(seen.after)}"
        if seen.before.argmax() != seen.after.argmax():
            answer += " · the hook has changed the prediction"
        each = torch.maximum(seen.before.nan_to_num(), seen.after.nan_to_num())
        most = sorted(each.topk(min(self._top, len(each))).indices.tolist())
        return {
            **{f"{name}_png": encode(pixels) for name, pixels in self._images.items()},
            **{f"{name}_alt": alt for name, alt in alts.items()},
            "notes": notes,
            "bars": [[self._classes[n], to_json_number(seen.before[n]), to_json_number(seen.after[n])] for n in most],
            "answer": answer,
            "alt": " ".join([f"Three images, and bars of the probabilities; {answer}.", *alts.values()]),
            "code": self._write_code(),
        }

    def _describe_top_class(self, probabilities: Tensor) -> str:
        if not probabilities.isfinite().all():
            return "no class: the probabilities are NaN"
        best = int(probabilities.argmax())
        return f"{self._classes[best]} ({format_percent(float(probabilities[best]))})"


def _format_number(value: float) -> str:
    return f"({value!r})" if value < 0 else repr(value)
