"""Make logits of a stream: by the modules through which the model itself sends the last one, or by what is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookscope.interp.lenses.blocks import first_tensor
from hookscope.layers import Modules, pick
from hookscope.pytree import find_tensors

__all__ = ["Given", "Lens", "Step", "difference", "found_lens", "given_lens", "outside"]

_AT_ONCE = 1 << 24  # logits that are computed together: 64 MiB of float32

Given = str | Sequence[str] | Callable[[Tensor], Any] | None


@dataclass(frozen=True)
class Lens:
    """A way from a stream to logits.

    Attributes:
        modules: those it goes through, in their order; () for a function.
        names: their names.
        function: what it is instead of modules.
        position: where the model reads the stream, for one that reads a single position (a class token, the last
            token); None for one that reads all.

    """

    modules: tuple[nn.Module, ...] = ()
    names: tuple[str, ...] = ()
    function: Callable[[Tensor], Any] | None = None
    position: int | None = None

    def __call__(self, stream: Tensor) -> Tensor:
        """Return logits, (batch, tokens, words), for a stream, (batch, tokens, width).

        Raises:
            ValueError: what comes out is not of that shape.

        """
        out: Any = stream
        if self.function is not None:
            out = self.function(stream)
        for name, module in zip(self.names, self.modules, strict=True):
            came = tuple(out.shape)
            try:
                out = first_tensor(module(out))
            except (TypeError, RuntimeError) as error:
                said = str(error).partition("\n")[0]
                raise ValueError(f"lens={self.text()}: {name!r} does not take {came}: {said}") from error
            if out is None:
                break
        if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:2] != stream.shape[:2]:
            what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"lens={self.text()}: it made {what} of a stream {tuple(stream.shape)}; it should make logits, "
                "(batch, tokens, words)"
            )
        return out.detach()

    def pieces(self, stream: Tensor, words: int) -> Iterator[Tensor]:
        """Yield logits for so many positions at a time as memory allows; a function is given all at once."""
        size = stream.shape[1] if self.function is not None else max(1, _AT_ONCE // max(words, 1))
        for piece in torch.split(stream, size, 1):
            yield self(piece)

    def text(self) -> str:
        """Name it: its modules, or its function."""
        if self.function is not None:
            return getattr(self.function, "__qualname__", type(self.function).__name__)
        return " → ".join(self.names)


class Step(NamedTuple):
    """A call outside of the blocks, after the last of them."""

    name: str
    module: nn.Module
    given: Tensor
    made: Tensor


def given_lens(modules: Modules, given: Given) -> Lens | None:
    """Turn what was given as `lens` into one; None where it is to be found.

    Raises:
        LayerNotFoundError: there is no such module.
        TypeError: it is neither names nor a function.

    """
    if given is None:
        return None
    if isinstance(given, str | list | tuple) and given:
        names = [given] if isinstance(given, str) else list(given)
        if all(isinstance(name, str) for name in names):
            found = [next(iter(pick(modules, name).items())) for name in names]
            return Lens(tuple(module for _, module in found), tuple(name for name, _ in found))
    elif callable(given):
        return Lens(function=given)
    raise TypeError(
        f"lens={given!r}: give names of modules, as lens=('norm', 'head'), or a function from a stream (batch, tokens, "
        "width) to logits (batch, tokens, words)"
    )


def outside(modules: Modules, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """List the outermost modules that are called and neither are blocks nor hold any.

    Example:
        >>> net = nn.Sequential(nn.Embedding(3, 2), nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Linear(2, 3))
        >>> outside(Modules(net), [net[1]])
        [Embedding(3, 2), Linear(in_features=2, out_features=3, bias=True)]

    """
    chosen = set(blocks)
    around = {module for module in modules.names if not chosen.isdisjoint(module.modules())}
    found: dict[nn.Module, None] = {}
    waiting = [modules.model]
    while waiting:
        module = waiting.pop(0)
        if module in chosen:
            continue
        if module not in around and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            found[module] = None
            continue
        waiting = [child for child in module._modules.values() if child is not None] + waiting
    return list(found)


def found_lens(modules: Modules, last: Tensor, steps: Sequence[Step], returned: Any) -> Lens | None:
    """Follow the last stream to the logits: through every call that was given just what the one before it made.

    Args:
        modules: those of the model.
        last: the stream of the last block, (batch, tokens, width).
        steps: the calls after it, in their order.
        returned: what the model returned.

    Returns:
        A lens that ends at a linear layer; for a model of transformers at its output embeddings. None if there is none.

    """
    now, chain, position = last, list[Step](), None
    for step in steps:
        place = _taken(now, step.given)
        if place is None or step.made.dim() != step.given.dim() or step.made.shape[:-1] != step.given.shape[:-1]:
            continue
        chain.append(step)
        now = step.made
        position = position if place is _ALL else place
    ends = any(_same(now, tensor) for tensor in find_tensors(returned))
    head = _output_embeddings(modules.model)
    if head is not None:
        if not any(head in step.module.modules() for step in chain):
            chain.append(Step(modules.names.get(head, ""), head, now, now))
    elif not (ends and chain and _last_linear(chain[-1].module)):
        return None
    return Lens(tuple(step.module for step in chain), tuple(step.name for step in chain), None, position)


_ALL = -(1 << 40)  # no position, but all


def _taken(stream: Tensor, given: Tensor) -> int | None:
    """Say which position of a stream a call was given: `_ALL`, one of them, or None for something else."""
    if _same(stream, given) or (given.dim() == 3 and _same(stream.transpose(0, 1), given)):
        return _ALL
    if given.dim() == 3 and stream.dim() == 3 and given.shape[1] < stream.shape[1]:  # only the last logits were wanted
        return _ALL if given.shape[1] and _same(stream[:, -given.shape[1] :], given) else None
    if given.dim() == 2 and stream.dim() == 3:
        for place in (0, stream.shape[1] - 1):
            if _same(stream[:, place], given):
                return place
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    """What transformers calls the layer that makes logits; None elsewhere, and where a model has none."""
    ask = getattr(model, "get_output_embeddings", None)
    found = ask() if callable(ask) else None
    return found if isinstance(found, nn.Module) else None


def _last_linear(module: nn.Module) -> bool:
    """Whether the last part of a module that is not a mere activation or dropout is a linear layer."""
    leaves = [each for each in module.modules() if not each._modules and next(each.parameters(), None) is not None]
    return bool(leaves) and isinstance(leaves[-1], nn.Linear)


def difference(mine: Tensor, theirs: Tensor) -> tuple[float, float, float]:
    """Return the largest difference of logits, what rounding may make of it, and the largest logit."""
    largest = float(theirs.abs().nan_to_num().max()) if theirs.numel() else 0.0
    wide = torch.promote_types(mine.dtype, theirs.dtype)
    differs = (mine.to(wide) - theirs.to(wide)).abs()
    both = mine.isnan() & theirs.isnan()
    error = differs.masked_fill(both, 0.0)
    worst = float(error.nan_to_num(float("inf")).max()) if error.numel() else 0.0
    return worst, largest * max(1e-4, 8 * torch.finfo(theirs.dtype).eps), largest
