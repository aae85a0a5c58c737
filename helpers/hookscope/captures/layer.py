"""All calls of one layer: its only call, or all of them put together."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hookscope.captures.call import Call, NotCapturedError
from hookscope.captures.combine import join_calls, stack_calls

__all__ = ["Layer"]


class Layer:
    """All calls of one layer; for a layer that was called once, also that call's `output`, `grad`, `args`, `kwargs`.

    Attributes:
        name: the layer's dotted name, `""` for the root.
        calls: the calls in the order in which they began.

    """

    def __init__(self, name: str, calls: tuple[Call, ...]) -> None:
        self.name = name
        self.calls = calls

    def _only(self, what: str) -> Call:
        if len(self.calls) != 1:
            raise NotCapturedError(
                f"layer {self.name!r} was called {len(self.calls)} times; say which call you mean: "
                f"seen[{self.name!r}].calls[0].{what}"
            )
        return self.calls[0]

    @property
    def output(self) -> Any:
        """What the layer returned, see `Call.output`; an error if it was called more than once."""
        return self._only("output").output

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, see `Call.grad`; an error if it was called more than once."""
        return self._only("grad").grad

    @property
    def stats(self) -> Any:
        """The statistics of the output, see `Call.stats`; an error if it was called more than once."""
        return self._only("stats").stats

    @property
    def grad_stats(self) -> Any:
        """The statistics of the gradient, see `Call.grad_stats`; an error if it was called more than once."""
        return self._only("grad_stats").grad_stats

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, see `Call.args`; an error if the layer was called more than once."""
        return self._only("args").args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, see `Call.kwargs`; an error if the layer was called more than once."""
        return self._only("kwargs").kwargs

    def stack(self, part: int | str | None = None) -> Any:
        """Stack the outputs of all calls along a new first axis.

        Args:
            part: an index, key or attribute into the outputs; None stacks each of their tensors.

        Returns:
            A tensor [calls, ...], or the outputs' structure of such tensors.

        Raises:
            NotCapturedError: the calls differ in shape, dtype, structure or values that are no tensors; or one raised.

        Example:
            >>> import torch, hookscope
            >>> from torch import nn
            >>> relu = nn.ReLU()
            >>> with hookscope.capture(net := nn.Sequential(relu, nn.Linear(2, 2), relu)) as seen:
            ...     _ = net(torch.ones(3, 2))
            >>> seen["0"].stack().shape
            torch.Size([2, 3, 2])

        """
        return stack_calls(self.name, self.calls, part)

    def join(self, dim: int = 1, part: int | str | None = None) -> Tensor:
        """Join the outputs of all calls along an axis, as the passes of `generate()` with a KV cache make a sequence.

        The first pass has the positions of the prompt, each other one the next position; the last token generated is
        never given to the model and has none. Refused is what gives no sequence: several calls in one pass; the passes
        of several `generate()`; beam search and assisted decoding of transformers, where rows change places or tokens
        are taken back; outputs that grow from call to call, as without a cache. A loop of your own that moves rows is
        not noticed.

        Args:
            dim: the axis of the sequence; 1 in [batch, sequence, features].
            part: an index, key or attribute into the outputs, where they are not one tensor.

        Returns:
            The tensor, which has the sum of the calls' lengths along `dim`.

        Raises:
            NotCapturedError: the calls are not one sequence, or differ in more than its length; or one raised.

        Example:
            >>> import torch, hookscope
            >>> from torch import nn
            >>> net = nn.Linear(2, 3)
            >>> with hookscope.capture(net) as seen:
            ...     _ = net(torch.ones(1, 4, 2)), net(torch.ones(1, 1, 2)), net(torch.ones(1, 1, 2))
            >>> seen[""].join(dim=1).shape
            torch.Size([1, 6, 3])

        """
        return join_calls(self.name, self.calls, dim, part)

    def __repr__(self) -> str:
        more = len(self.calls) - _SHOWN
        shown = [*map(repr, self.calls[:_SHOWN]), *([f"… and {more:,} more calls, see .calls"] if more > 0 else [])]
        return "\n".join(shown)


_SHOWN = 200  # calls
