"""Hold what each layer costs, and show it as a table and as bars."""

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
    """Seconds, measured several times.

    Attributes:
        runs: one number for each pass; of a layer, for each pass that called it.

    Example:
        >>> Time((0.002, 0.001, 0.004, 0.003))
        2.5 ms (1.75 to 3.25)
        >>> Time(())
        not measured

    """

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the passes took less; NaN where there were none."""
        return median(self.runs) if self.runs else nan

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between these two is the half of the passes around the median."""
        if len(self.runs) < 2:
            return self.median, self.median
        low, _, high = quantiles(self.runs, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> str:
        """The quartiles, in milliseconds."""
        if not self.runs:
            return "not measured"
        low, high = self.quartiles
        return f"{1e3 * low:.3g} to {1e3 * high:.3g}"

    def __repr__(self) -> str:
        return f"{1e3 * self.median:.3g} ms ({self.spread})" if self.runs else self.spread


@dataclass(frozen=True)
class LayerProfile:
    """What one layer costs in a pass, all calls of it together.

    A total counts what ran inside the calls, its own part (`…_self`) leaves out the layers that are called there.
    Backward counts for the layer in whose forward the operation was.

    Attributes:
        name: the layer's dotted name, "" for the root.
        type: class name of the module.
        calls: how often it was called in a pass, that in which FLOPs are counted.
        forward: total time.
        forward_self: its own part; what the hooks on the layers inside take is in it.
        backward: total time of the backward nodes; None without backward.
        backward_self: its own part.
        flops: FLOPs, total, by `torch.utils.flop_counter`; None where they could not be counted.
        flops_self: its own part.
        backward_flops: FLOPs of backward, total; None without backward.
        backward_flops_self: its own part.
        parameters: bytes of parameters and buffers, with those of the layers inside, each once.
        outputs: bytes of the tensors that it returned.
        saved: bytes that autograd keeps for backward, parameters and inputs of the model apart, total; None where not
            counted. Memory that several layers save counts for the first.
        gradients: bytes of the gradients that its backward makes, total; None without backward.

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
        """Write one row of the table: milliseconds, millions of FLOPs, KiB."""
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
    """What `profile` returns: a mapping from the names of the layers that were called to what each costs.

    Attributes:
        title: class name of the model.
        forward: time of the whole pass with hooks.
        backward: time of its backward, likewise; None without backward.
        plain_forward: time of the whole pass without any hook of hookscope.
        plain_backward: likewise.
        outside: time of backward in nodes that no layer made, such as those of the loss; None without backward.
        notes: what else there is to know.

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

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, name: object) -> bool:
        return name in self._layers

    @property
    def overhead(self) -> dict[str, float]:
        """What the hooks add to the pass, as a share of the pass without them: 0.05 is 5 %; forward and backward."""
        shares = {"forward": self.forward.median / self.plain_forward.median - 1}
        if self.backward is not None and self.plain_backward is not None:
            shares["backward"] = self.backward.median / self.plain_backward.median - 1
        return shares

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each layer, in the order of the first calls."""
        return [layer.row() for layer in self._layers.values()]

    def slowest(self, count: int = 10) -> list[LayerProfile]:
        """List the layers with the most time of their own, forward and backward together, the slowest first.

        Args:
            count: how many, at most.

        """
        return sorted(self._layers.values(), key=lambda layer: -_own(layer))[:count]

    def picture(self, count: int = 24) -> Picture:
        """Draw a bar of the time of its own for each of the slowest layers, forward and backward.

        Args:
            count: how many layers, at most.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        shown = self.slowest(count)
        left = len(self._layers) - len(shown)
        title = f"{self.caption}; {len(shown)} slowest of {len(self._layers)} layers" if left else self.caption
        return draw_bars(shown, title, [layer.row() for layer in shown])

    @property
    def caption(self) -> str:
        """What the whole pass takes, and what the hooks add."""
        text = f"{self.title}: forward {self.plain_forward!r}"
        if self.plain_backward is not None:
            text += f", backward {self.plain_backward!r}"
        hooks = " and ".join(f"{100 * share:+.0f} % {what}" for what, share in self.overhead.items())
        return f"{text}, median (quartiles) of {len(self.forward.runs)} passes without hooks; with hooks {hooks}"


def _own(layer: LayerProfile) -> float:
    times = (layer.forward_self, layer.backward_self)
    return sum(time.median for time in times if time is not None and time.runs)


def _scale(number: int | None, unit: float) -> float | None:
    return None if number is None else number / unit
