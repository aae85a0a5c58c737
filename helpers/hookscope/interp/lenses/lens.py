"""Turn a residual stream into logits, with the last modules of the model or with a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookscope.interp.lenses.blocks import first_tensor
from hookscope.layers import Modules, pick
from hookscope.pytree import find_tensors

__all__ = ["Lens", "LensSpec", "OuterCall", "compare_logits", "find_lens", "find_outer_modules", "parse_lens"]

_MOST_LOGITS = 1 << 24  # logits computed at once: 64 MiB of float32

LensSpec = str | Sequence[str] | Callable[[Tensor], Any] | None


@dataclass(frozen=True)
class Lens:
    """Turns a residual stream into logits: a chain of modules, or a function.

    Attributes:
        modules: the modules in order; () for a function.
        names: the names of the modules.
        function: the function, if there are no modules.
        position: the only position that the model reads, such as a class token; None if it reads all.

    """

    modules: tuple[nn.Module, ...] = ()
    names: tuple[str, ...] = ()
    function: Callable[[Tensor], Any] | None = None
    position: int | None = None

    def __call__(self, stream: Tensor) -> Tensor:
        """Return logits, (batch, tokens, words), for a stream, (batch, tokens, width).

        Raises:
            ValueError: a module does not accept the stream, or the result has another shape.

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
                raise ValueError(
                    f"lens={self.describe()}: the module {name!r} does not accept the shape {came} ({said}). Name "
                    "other modules, or pass a function"
                ) from error
            if out is None:
                break
        if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:2] != stream.shape[:2]:
            what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"lens={self.describe()} turned a stream of shape {tuple(stream.shape)} into {what}. It must return "
                "logits of shape (batch, tokens, words)"
            )
        return out.detach()

    def split_logits(self, stream: Tensor, words: int) -> Iterator[Tensor]:
        """Yield the logits in pieces of limited size. A function gets the whole stream at once."""
        size = stream.shape[1] if self.function is not None else max(1, _MOST_LOGITS // max(words, 1))
        for piece in torch.split(stream, size, 1):
            yield self(piece)

    def describe(self) -> str:
        """Return the names of the modules, or of the function."""
        if self.function is not None:
            return getattr(self.function, "__qualname__", type(self.function).__name__)
        return " → ".join(self.names)


class OuterCall(NamedTuple):
    """A call of a module outside the blocks, after the last block."""

    name: str
    module: nn.Module
    given: Tensor
    made: Tensor


def parse_lens(modules: Modules, given: LensSpec) -> Lens | None:
    """Return the `Lens` for the argument `lens=`, or None if that is None.

    Raises:
        LayerNotFoundError: there is no such module.
        TypeError: it is neither names of modules nor a function.

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
        f"lens={given!r} is neither names of modules nor a function. Pass names, as lens=('norm', 'head'), or a "
        "function that turns (batch, tokens, width) into logits (batch, tokens, words)"
    )


def find_outer_modules(modules: Modules, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """List the outermost modules that are not blocks, do not contain blocks, and can be called.

    Example:
        >>> net = nn.Sequential(nn.Embedding(3, 2), nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Linear(2, 3))
        >>> find_outer_modules(Modules(net), [net[1]])
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


def find_lens(modules: Modules, last: Tensor, steps: Sequence[OuterCall], returned: Any) -> Lens | None:
    """Follow the last stream to the logits, through each call whose input is the output of the call before.

    Args:
        modules: the modules of the model.
        last: the stream after the last block, (batch, tokens, width).
        steps: the calls after the last block, in order.
        returned: the output of the model.

    Returns:
        A lens that ends at a linear layer, or at the output embeddings of a transformers model; None if the chain of
        calls breaks.

    """
    now, chain, position = last, list[OuterCall](), None
    for step in steps:
        place = _find_position(now, step.given)
        if place is None or step.made.dim() != step.given.dim() or step.made.shape[:-1] != step.given.shape[:-1]:
            continue
        chain.append(step)
        now = step.made
        position = position if place is _ALL else place
    ends = any(_is_same(now, tensor) for tensor in find_tensors(returned))
    head = _output_embeddings(modules.model)
    if head is not None:
        if not any(head in step.module.modules() for step in chain):
            chain.append(OuterCall(modules.names.get(head, ""), head, now, now))
    elif not (ends and chain and _last_linear(chain[-1].module)):
        return None
    return Lens(tuple(step.module for step in chain), tuple(step.name for step in chain), None, position)


_ALL = -(1 << 40)  # stands for all positions


def _find_position(stream: Tensor, given: Tensor) -> int | None:
    """Return the position of a stream that a call got as input, `_ALL`, or None for any other tensor."""
    if _is_same(stream, given) or (given.dim() == 3 and _is_same(stream.transpose(0, 1), given)):
        return _ALL
    if given.dim() == 3 and stream.dim() == 3 and given.shape[1] < stream.shape[1]:  # only the last logits
        return _ALL if given.shape[1] and _is_same(stream[:, -given.shape[1] :], given) else None
    if given.dim() == 2 and stream.dim() == 3:
        for place in (0, stream.shape[1] - 1):
            if _is_same(stream[:, place], given):
                return place
    return None


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    """Return the layer that makes the logits of a transformers model, or None."""
    ask = getattr(model, "get_output_embeddings", None)
    found = ask() if callable(ask) else None
    return found if isinstance(found, nn.Module) else None


def _last_linear(module: nn.Module) -> bool:
    """Return whether the last leaf module with parameters is a linear layer."""
    leaves = [each for each in module.modules() if not each._modules and next(each.parameters(), None) is not None]
    return bool(leaves) and isinstance(leaves[-1], nn.Linear)


def compare_logits(mine: Tensor, theirs: Tensor) -> tuple[float, float, float]:
    """Return the largest difference of the logits, the difference that rounding can cause, and the largest logit."""
    largest = float(theirs.abs().nan_to_num().max()) if theirs.numel() else 0.0
    wide = torch.promote_types(mine.dtype, theirs.dtype)
    differs = (mine.to(wide) - theirs.to(wide)).abs()
    both = mine.isnan() & theirs.isnan()
    error = differs.masked_fill(both, 0.0)
    worst = float(error.nan_to_num(float("inf")).max()) if error.numel() else 0.0
    return worst, largest * max(1e-4, 8 * torch.finfo(theirs.dtype).eps), largest
