"""Run a model on copies of its inputs, with hooks that read or change one tensor of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookscope.captures.call import RAISED
from hookscope.interp.edits import NotEditedError
from hookscope.interp.edits.batch_first import samples_in
from hookscope.interp.edits.intercept import CallInterceptor, PatchedForward
from hookscope.interp.edits.nested_values import keys, put
from hookscope.interp.edits.report import UNSEEN_HEADS, why_not_called
from hookscope.interp.sweeps.sites import Site
from hookscope.layers import Modules
from hookscope.pytree import find_tensors, tree_map

__all__ = ["Inputs", "Patch", "Source", "register_patches"]

Source = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.

    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def replace(self, given: Source, what: str, instead: str = "") -> Inputs:
        """Return new inputs: a tensor or a tuple replaces `args`, and a mapping replaces `kwargs`.

        If these inputs have both args and kwargs, the other kind stays.

        Args:
            given: the tensor, tuple or mapping.
            what: the name of the argument in an error.
            instead: other values that the caller accepts, for the error.

        Raises:
            TypeError: `given` has another type.

        """
        both = bool(self.args and self.kwargs)
        if isinstance(given, (Tensor, tuple)):
            args = given if isinstance(given, tuple) else (given,)
            return Inputs(args, self.kwargs if both else {})
        if isinstance(given, Mapping):
            return Inputs(self.args if both else (), dict(given))
        raise TypeError(
            f"{what} is of type {type(given).__name__}. Pass {instead}a tensor, a tuple of positional arguments, or a "
            "dict of keyword arguments"
        )

    @property
    def samples(self) -> int:
        """The number of samples, also in a list of images; 0 if it is unknown."""
        return samples_in((*self.args, *self.kwargs.values())) or self.rows

    @property
    def rows(self) -> int:
        """The length of the first tensor's first axis, along which a batch of variants grows; 0 without a tensor."""
        first = next((tensor for tensor in find_tensors((self.args, self.kwargs)) if tensor.dim()), None)
        return 0 if first is None else len(first)

    def run(self, model: nn.Module, times: int = 1) -> Any:
        """Call a model with copies of the inputs, because it might write to them; repeat all samples `times` times."""
        rows = self.rows if times > 1 else 0

        def copy(tensor: Tensor) -> Tensor:
            if rows and tensor.dim() and len(tensor) == rows:
                return tensor.repeat(times, *[1] * (tensor.dim() - 1))
            return tensor.clone()

        # With `note`, tree_map also copies objects without tensors: a pass can fill them, as an empty KV cache.
        args, kwargs = tree_map(copy, (self.args, self.kwargs), note=lambda _: None)
        return model(*args, **kwargs)


class Patch:
    """A hook that reads or changes the tensor at one site.

    Args:
        site: the tensor.
        change: gets the tensor, and returns a replacement or None.

    Attributes:
        calls: the number of calls of the layer.
        done: the number of calls in which `change` ran.
        way: the keys that lead from the layer's output or inputs to the tensor.

    """

    def __init__(self, site: Site, change: Callable[[Tensor], Tensor | None]) -> None:
        self.site, self._change = site, change
        self.calls = self.done = self._began = 0
        self.way: tuple[tuple[str, Any], ...] = ()
        self._begins = False

    def register(self, stack: ExitStack) -> None:
        """Register the hook; the stack removes it."""
        module = self.site.module
        if self.site.to == "input":
            stack.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)
        elif self.site.to == "output":
            stack.callback(module.register_forward_pre_hook(self.count).remove)
            stack.callback(module.register_forward_hook(self.after).remove)
        else:
            stack.callback(module.register_forward_pre_hook(self.begin).remove)
            forward = PatchedForward(module, self._intercept)
            stack.callback(forward.remove)
            forward.install()

    def count(self, module: nn.Module, args: Any) -> None:
        """Count a call that has begun; it can end with an exception."""
        self._began += 1

    def begin(self, module: nn.Module, args: Any) -> None:
        """Count a call of a layer whose heads are changed inside its forward."""
        self.calls += 1
        self._begins = self.site.call in (None, self.calls)

    def _intercept(self) -> CallInterceptor | None:
        begins, self._begins = self._begins, False
        return CallInterceptor(self.site.module, self._change_heads) if begins else None

    def _change_heads(self, tensor: Tensor) -> Tensor:
        self.done += 1
        new = self._change(tensor)
        return tensor if new is None else new

    def _apply(self, value: Any) -> Any:
        self.calls += 1
        if self.site.call not in (None, self.calls):
            return None
        self.done += 1
        path = self.site.find_path(value)
        new = self._change(self.site.get_tensor(value, path))
        self.way = self.way or keys(value, path)
        return None if new is None else put(value, path, new)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Change the layer's inputs."""
        given = self._apply({**dict(enumerate(args)), **kwargs})
        if given is None:
            return None
        return tuple(given[number] for number in range(len(args))), {key: given[key] for key in kwargs}

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Change the layer's output."""
        return self._apply(output)

    before.__qualname__ = after.__qualname__ = begin.__qualname__ = count.__qualname__ = (
        "hookscope.sweep"  # the name in a census
    )

    def check_calls(self, modules: Modules, runs: str) -> None:
        """Raise an error unless the layer was called, and only once if the site names no call."""
        site = self.site
        if not self.calls:
            why = RAISED if self._began else why_not_called(modules, site.module, 1)
            what = site.label if site.to == "output" else site.name  # heads: their output projection
            raise NotEditedError([f"layer {what!r} {why} ({runs})"])
        if not self.done:
            times = "once" if self.calls == 1 else f"{self.calls} times"
            unseen = f", but {UNSEEN_HEADS}" if site.to == "heads" and (site.call or 1) <= self.calls else ""
            raise NotEditedError([f"layer {site.label!r}: the layer was called {times}{unseen} ({runs})"])
        if self.done > 1:
            labels = ", ".join(repr(f"{site.label}#{number}") for number in range(1, min(self.calls, 8) + 1))
            raise NotEditedError(
                [
                    f"layer {site.label!r} was called {self.calls} times ({runs}). A sweep changes one call at a time. "
                    f"Name the call: {labels}{', …' if self.calls > 8 else ''}"
                ]
            )


@contextmanager
def register_patches(patches: Iterable[Patch]) -> Iterator[None]:
    """Register hooks for the block, and remove all of them at its end."""
    with ExitStack() as stack:
        for patch in patches:
            patch.register(stack)
        yield
