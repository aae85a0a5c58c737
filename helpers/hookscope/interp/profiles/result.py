"""The costs of each layer, shown as a table and as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from statistics import median, quantiles

from hookscope.interp.profiles.drawing import draw_bars
from hookscope.layers.suggestions import not_found
from hookscope.pictures import Picture, Result

__all__ = ["LayerProfile", "Profile", "Time"]

_KIB = 1024


@dataclass(frozen=True)
class Time:
    """A time in seconds, measured in several passes.

    Attributes:
        runs: one value for each pass that called the layer.

    Example:
        >>> Time((0.002, 0.001, 0.004, 0.003))
        2.5 ms (1.75 to 3.25)
        >>> Time(())
        not measured

    """

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median; NaN if there were no passes."""
        return median(self.runs) if self.runs else nan

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        if len(self.runs) < 2:
            return self.median, self.median
        low, _, high = quantiles(self.runs, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> str:
        """The quartiles as text, in milliseconds."""
        if not self.runs:
            return "not measured"
        low, high = self.quartiles
        return f"{1e3 * low:.3g} to {1e3 * high:.3g}"

    def __repr__(self) -> str:
        return f"{1e3 * self.median:.3g} ms ({self.spread})" if self.runs else self.spread


@dataclass(frozen=True)
class LayerProfile:
    """The costs of one layer in a pass, summed over its calls.

    A total includes the layers inside; `…_self` does not. Backward counts for the layer that ran the operation in
    forward.

    Attributes:
        name: the layer's dotted name, "" for the root.
        type: class name of the module.
        calls: the number of calls in the pass that counts FLOPs.
        forward, forward_self: the time. The hooks on layers inside are part of `forward_self`.
        backward, backward_self: the time of the backward nodes; None without backward.
        flops, flops_self: the FLOPs, as `torch.utils.flop_counter` counts them; None if it has no formula.
        backward_flops, backward_flops_self: the FLOPs of backward; None without backward.
        parameters: the bytes of all parameters and buffers, including the layers inside.
        outputs: the bytes of the tensors that it returned.
        saved: the bytes that autograd saves for backward, without parameters and inputs of the model; None if not
            counted. A tensor that several layers save counts for the first one.
        gradients: the bytes of the gradients that its backward makes; None without backward.

    """

    name: str
    type: str
    calls: int
    forward: Time
    forward_self: Time
    backward: Time | None
    backward_self: Time | None
    flops: int | None
    flops_self: int | None
    backward_flops: int | None
    backward_flops_self: int | None
    parameters: int
    outputs: int
    saved: int | None
    gradients: int | None

    def row(self) -> dict[str, object]:
        """Return one row of the table, in milliseconds, millions of FLOPs, and KiB."""
        row: dict[str, object] = {"layer": self.name or "(root)", "type": self.type, "calls": self.calls}
        for what, total, own in (
            ("forward", self.forward, self.forward_self),
            ("backward", self.backward, self.backward_self),
        ):
            if total is not None and own is not None:
                row |= {f"{what} ms": 1e3 * total.median, f"{what} quartiles": total.spread}
                row |= {f"{what} self ms": 1e3 * own.median}
        row |= {"MFLOPs": _scale(self.flops, 1e6), "backward MFLOPs": _scale(self.backward_flops, 1e6)}
        row |= {"parameters KiB": self.parameters / _KIB, "outputs KiB": self.outputs / _KIB}
        row |= {"saved KiB": _scale(self.saved, _KIB), "gradients KiB": _scale(self.gradients, _KIB)}
        return {name: value for name, value in row.items() if value is not None}


class Profile(Result, Mapping[str, LayerProfile]):
    """The result of `profile`: maps the name of each layer that was called to its costs.

    Attributes:
        title: the class name of the model.
        forward, backward: the time of the whole pass with hooks; `backward` is None without backward.
        plain_forward, plain_backward: the same without the hooks of `profile`.
        outside: the time of backward nodes that no layer made, such as those of the loss; None without backward.
        notes: remarks about the measurement.

    """

    _picture_and_table = True

    def __init__(
        self,
        title: str,
        layers: Mapping[str, LayerProfile],
        times: Mapping[str, Time | None],
        notes: tuple[str, ...],
    ) -> None:
        self.title, self._layers, self.notes = title, dict(layers), notes
        forward, plain_forward = times["forward"], times["plain forward"]
        assert forward is not None
        assert plain_forward is not None
        self.forward, self.plain_forward = forward, plain_forward
        self.backward, self.plain_backward = times["backward"], times["plain backward"]
        self.outside = times["outside"]

    def __getitem__(self, name: str) -> LayerProfile:
        if name in self._layers:
            return self._layers[name]
        raise not_found(self._layers, name, f"no layer {name!r} was called in this profile")

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, name: object) -> bool:
        return name in self._layers

    @property
    def overhead(self) -> dict[str, float]:
        """The time that the hooks add to forward and backward, as a fraction: 0.05 is 5 %."""
        shares = {"forward": self.forward.median / self.plain_forward.median - 1}
        if self.backward is not None and self.plain_backward is not None:
            shares["backward"] = self.backward.median / self.plain_backward.median - 1
        return shares

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each layer, in call order."""
        return [layer.row() for layer in self._layers.values()]

    def slowest(self, count: int = 10) -> list[LayerProfile]:
        """List the layers with the longest forward and backward time in the layer itself, slowest first.

        Args:
            count: the maximum number of layers.

        """
        return sorted(self._layers.values(), key=lambda layer: -_own(layer))[:count]

    def picture(self, count: int = 24) -> Picture:
        """Plot the forward and backward time in each of the slowest layers as bars.

        Args:
            count: the maximum number of layers.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        shown = self.slowest(count)
        left = len(self._layers) - len(shown)
        title = f"{self.caption}; {len(shown)} slowest of {len(self._layers)} layers" if left else self.caption
        return draw_bars(shown, title, [layer.row() for layer in shown])

    @property
    def caption(self) -> str:
        """The time of the whole pass, and the time that the hooks add."""
        text = f"{self.title}: forward {self.plain_forward!r}"
        if self.plain_backward is not None:
            text += f", backward {self.plain_backward!r}"
        shares = {what: f"{100 * share:+.0f} %" for what, share in self.overhead.items() if share >= 0}
        hooks = " and ".join(f"{shares.get(what, 'no measurable difference')} {what}" for what in self.overhead)
        return f"{text}, median (quartiles) of {len(self.forward.runs)} passes without hooks; with hooks {hooks}"


def _own(layer: LayerProfile) -> float:
    times = (layer.forward_self, layer.backward_self)
    return sum(time.median for time in times if time is not None and time.runs)


def _scale(number: int | None, unit: float) -> float | None:
    return None if number is None else number / unit
