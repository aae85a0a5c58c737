"""One pass of a model, with everything that a picker may ask for kept: outputs of all layers, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.capture import Capture, capture
from hookscope.structures import map_tensors, tensors_in
from hookscope.unchanged import model_unchanged, same_random_numbers

__all__ = ["ModelPass", "parts_of"]


class ModelPass:
    """Runs a model in `eval()` and keeps what flowed through each of its modules.

    Training flags, buffers and the state of the random number generators are put back, parameters and their `.grad`
    are not touched. The memory of one pass is used again by the next.

    Args:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        max_bytes: how much one pass may keep; None for no limit.

    Attributes:
        seen: the capture of the last pass.
        output: what the model returned in it, detached.

    """

    def __init__(
        self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], max_bytes: int | None = None
    ) -> None:
        self.model = model
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self.max_bytes = max_bytes
        self.output: Any = None
        self._plain = capture(model, _can_be_hooked, max_bytes=max_bytes)
        self._graded = self._plain.like(gradients=True)
        self.seen: Capture = self._plain

    def run(self) -> None:
        """Run the model without gradients."""
        with self._evaluating(), torch.no_grad(), self._plain:
            output = self.model(*self.args, **self.kwargs)
        self.seen = self._plain
        self.output = map_tensors(torch.Tensor.detach, output)

    def run_back(self, target: int | None) -> None:
        """Run the model, and backward from one class.

        Args:
            target: the class, an index into the last axis of the first tensor that the model returns; None for the
                highest score of each sample.

        Raises:
            ValueError: there is nothing to run backward from, or nothing that requires a gradient.
            IndexError: there is no such class.

        """
        sources: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor
            sources.append(tensor.detach().clone().requires_grad_())
            # In place on a leaf is forbidden; a model may begin with it.
            return sources[-1].view_as(sources[-1]) + 0

        with self._evaluating(), torch.enable_grad(), self._graded:
            args, kwargs = map_tensors(leaf, (self.args, self.kwargs))
            output = self.model(*args, **kwargs)
            score = _score(output, target)
            sources += [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            if not score.requires_grad:
                raise ValueError("the model's output does not require grad, so nothing flows backward")
            # Not backward(), which would add to the .grad of the learner's parameters.
            torch.autograd.grad(score, sources, allow_unused=True)
        self.output = map_tensors(torch.Tensor.detach, output)
        self.seen = self._graded

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        with (
            model_unchanged(self.model),
            same_random_numbers(self.model, self.args, self.kwargs),
            _with_the_way_out(self.max_bytes),
        ):
            self.model.eval()
            yield

    def classes(self) -> int:
        """Return how many classes the output seems to have: the length of its last axis; 0 if that makes no sense."""
        first = _first(self.output)
        return first.shape[-1] if first is not None and first.dim() == 2 and first.is_floating_point() else 0


def parts_of(value: Any) -> dict[str, Tensor]:
    """Name the tensors in an output: `""` for one tensor, else `[0]`, `['low']`, `.logits` and so on.

    Example:
        >>> parts_of((torch.zeros(1), {"low": torch.zeros(2)})).keys()
        dict_keys(['[0]', "[1]['low']"])

    """
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str, depth: int) -> None:
        if isinstance(value, Tensor):
            found[path] = value
        elif depth > 8 or value is None or isinstance(value, (str, bytes, int, float)):
            return
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for name in value._fields:
                walk(getattr(value, name), f"{path}.{name}", depth + 1)
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                walk(item, f"{path}[{index}]", depth + 1)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{path}[{key!r}]", depth + 1)
        else:
            for name, item in getattr(value, "__dict__", {}).items():
                walk(item, f"{path}.{name}", depth + 1)

    walk(value, "", 0)
    return found


@contextmanager
def _with_the_way_out(max_bytes: int | None) -> Iterator[None]:
    """Say of a pass that keeps too much what a picker can do about it; capture names options that it has not."""
    try:
        yield
    except MemoryError as error:
        if max_bytes is None or "max_bytes" not in str(error):
            raise
        raise MemoryError(
            f"the outputs of all layers take more than max_bytes={max_bytes:,}: give fewer or smaller inputs, "
            "a part of the model, or a larger max_bytes (None for no limit)"
        ) from error


def _can_be_hooked(name: str, module: nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule)


def _first(output: Any) -> Tensor | None:
    return next(iter(tensors_in(output)), None)


def _score(output: Any, target: int | None) -> Tensor:
    first = _first(output)
    if first is None or not first.is_floating_point():
        raise ValueError("the model returns no floating tensor to run backward from")
    if first.dim() != 2:
        return first.sum()
    if target is None:
        return first.max(dim=1).values.sum()
    if not 0 <= target < first.shape[1]:
        raise IndexError(f"no class {target}: the model returns {first.shape[1]}, so 0 to {first.shape[1] - 1}")
    return first[:, target].sum()
