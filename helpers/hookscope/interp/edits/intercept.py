"""Edit inside a call of an attention layer, between its heads and its output projection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["CallInterceptor", "PatchedForward"]


class CallInterceptor(TorchFunctionMode):
    """Edits the heads in one call of an `nn.MultiheadAttention`, which does not call its output projection.

    Args:
        module: the attention layer.
        heads: edits the input of the output projection, in the layout of the layer's input and output.

    """

    def __init__(self, module: nn.Module, heads: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._module, self._heads = module, heads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._opened(func, args, kwargs)
        return func(*args, **kwargs)

    def _opened(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run torch's function for multi-head attention as it is, with a function that it calls watched."""
        query, batch_first = args[0], bool(getattr(self._module, "batch_first", False))

        def linear(merged: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            # The only one there: the output projection, of (tokens · samples, heads · width).
            shaped = merged.view(*query.shape[:-1], merged.shape[-1])
            flip = batch_first and shaped.dim() == 3
            edited = self._heads(shaped.transpose(0, 1) if flip else shaped)
            edited = edited.transpose(0, 1) if flip else edited
            return F.linear(edited.reshape(merged.shape), weight, bias)

        # A copy, since whatever the original calls belongs to everybody; torch's own question whether there is somebody
        # who overrides it has been answered: here.
        watched = {"has_torch_function": lambda given: False, "linear": linear}
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
