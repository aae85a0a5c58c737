"""Edit inside a call of an attention layer: between its heads and its output projection, and edges of attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.interp.edits.attention import knock_out
from hookscope.interp.edits.layer_edit import LayerEdit

__all__ = ["CallInterceptor", "PatchedForward", "is_cross_attention"]


class CallInterceptor(TorchFunctionMode):
    """Intercepts the functions that one call of an attention layer calls, and edits their results.

    Args:
        module: the attention layer.
        heads: edits the input of the output projection of an `nn.MultiheadAttention`, in the layout of the layer's
            input and output.
        edges: the edits that cut edges.
        number: the number of the call; 0 if it is unknown.
        again: whether a checkpoint runs it again in backward.
        crossed: whether its keys and queries come from different tensors.

    """

    def __init__(
        self,
        module: nn.Module,
        heads: Callable[[Tensor], Tensor] | None = None,
        edges: Sequence[LayerEdit] = (),
        number: int = 0,
        again: bool = False,
        crossed: bool = False,
    ) -> None:
        super().__init__()
        self._module, self._heads, self._edges = module, heads, edges
        self._number, self._again, self._crossed = number, again, crossed
        self._attended = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._opened(func, args, kwargs)
        return func(*args, **kwargs)

    def _attention(self, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
        if not self._edges:
            return out
        self._attended += 1
        if self._attended > 1:
            raise ValueError(
                f"{self._edges[0].label(self._number)}: it computes attention several times in one call. Name "
                "the attention layer inside it"
            )
        for layer_edit in self._edges:
            out = knock_out(layer_edit, self._number, self._again, self._crossed, out, *args, **kwargs)
        return out

    def _opened(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run torch's function for multi-head attention as it is, with two of the functions that it calls watched."""
        query, batch_first = args[0], bool(getattr(self._module, "batch_first", False))

        def linear(merged: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            # The only one there: the output projection, of (tokens · samples, heads · width).
            if self._heads is None:
                return F.linear(merged, weight, bias)
            shaped = merged.view(*query.shape[:-1], merged.shape[-1])
            flip = batch_first and shaped.dim() == 3
            edited = self._heads(shaped.transpose(0, 1) if flip else shaped)
            edited = edited.transpose(0, 1) if flip else edited
            return F.linear(edited.reshape(merged.shape), weight, bias)

        # A copy, since whatever the original calls belongs to everybody; torch's own question whether there is somebody
        # who overrides it has been answered: here.
        watched = {"has_torch_function": lambda given: False, "linear": linear} | {
            "scaled_dot_product_attention": self._attention
        }
        opened = FunctionType(
            function.__code__, function.__globals__ | watched, function.__name__, function.__defaults__
        )
        opened.__kwdefaults__ = function.__kwdefaults__
        return opened(*args, **kwargs)


class PatchedForward:
    """Replaces the `forward` of a module while something inside it is edited, and then restores it.

    Args:
        module: the module.
        running: returns the interceptor of a call; None if the call is not edited.

    """

    def __init__(self, module: nn.Module, running: Callable[[], CallInterceptor | None]) -> None:
        self._module, self._running = module, running
        self._own = "forward" in module.__dict__
        self._before: Callable[..., Any] = module.forward
        self.__name__ = "forward"
        self.__qualname__ = "hookscope.edit"
        self.__signature__ = inspect.signature(self._before)

    def install(self) -> None:
        """Replace the module's forward."""
        self._module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        inside = self._running()
        if inside is None:
            return self._before(*args, **kwargs)
        with inside:
            return self._before(*args, **kwargs)

    def remove(self) -> None:
        """Restore the module's forward."""
        self._running = lambda: None
        now = self._module.__dict__.get("forward")
        if now is not self:
            # Somebody replaced it since, and goes on calling this one, which now does nothing of its own.
            while isinstance(now, PatchedForward):
                if now._before is self:
                    now._before, now._own = self._before, self._own
                    return
                now = now._before
        elif self._own:
            self._module.forward = self._before
        else:
            del self._module.__dict__["forward"]


def is_cross_attention(args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module) -> bool:
    """Whether the keys of an attention layer come from another tensor than its queries."""
    if any(kwargs.get(name) is not None for name in ("key_value_states", "encoder_hidden_states")):
        return True
    if isinstance(module, nn.MultiheadAttention):
        given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
        return given.get("key") is not given.get("query")
    try:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    except TypeError:
        return False
    return any(bound.get(name) is not None for name in ("key_value_states", "encoder_hidden_states"))
