"""All calls of one layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hookscope.captures.call import Call, NotCapturedError

__all__ = ["Layer"]


class Layer:
    """All calls of one layer. If there is only one, you can read its `output`, `grad`, `args` and `kwargs` directly.

    Attributes:
        name: the layer's dotted name, `""` for the root.
        calls: the calls, in the order in which they started.

    """

    def __init__(self, name: str, calls: tuple[Call, ...]) -> None:
        self.name = name
        self.calls = calls

    def _only(self, what: str) -> Call:
        if len(self.calls) != 1:
            raise NotCapturedError(
                f"layer {self.name!r} was called {len(self.calls)} times. Choose one of the calls: "
                f"seen[{self.name!r}].calls[0].{what}"
            )
        return self.calls[0]

    def __getattr__(self, name: str) -> Any:
        if name in ("input", "inputs"):
            hint = ". The inputs are in .args and .kwargs, if you capture with inputs=True"
        elif name == "outputs" or hasattr(Tensor, name):
            hint = f". Read the output of the layer: .output{'' if name == 'outputs' else '.' + name}"
        else:
            hint = ""
        raise AttributeError(f"a Layer of a capture has no attribute {name!r}{hint}")

    @property
    def output(self) -> Any:
        """The output of the layer, see `Call.output`; raises an error if the layer was called more than once."""
        return self._only("output").output

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, see `Call.grad`; raises an error if there is more than one call."""
        return self._only("grad").grad

    @property
    def stats(self) -> Any:
        """The statistics of the output, see `Call.stats`; raises an error if there is more than one call."""
        return self._only("stats").stats

    @property
    def grad_stats(self) -> Any:
        """The statistics of the gradient, see `Call.grad_stats`; raises an error if there is more than one call."""
        return self._only("grad_stats").grad_stats

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, see `Call.args`; raises an error if there is more than one call."""
        return self._only("args").args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, see `Call.kwargs`; raises an error if there is more than one call."""
        return self._only("kwargs").kwargs

    def __repr__(self) -> str:
        more = len(self.calls) - _SHOWN
        shown = [*map(repr, self.calls[:_SHOWN]), *([f"… and {more:,} more calls, see .calls"] if more > 0 else [])]
        return "\n".join(shown)


_SHOWN = 200  # calls
