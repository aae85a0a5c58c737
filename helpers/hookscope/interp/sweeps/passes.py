"""Run a model, note which call of which module came when, and keep what some of them returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope.interp.edits import NotEditedError
from hookscope.interp.edits.batch_first import samples_in
from hookscope.interp.edits.intercept import CallInterceptor, PatchedForward
from hookscope.interp.edits.parts import keys, put
from hookscope.interp.edits.report import UNSEEN_HEADS, why_not_called
from hookscope.interp.sweeps.sites import Site
from hookscope.layers import Modules
from hookscope.pytree import find_tensors, tree_map

__all__ = ["CallLog", "Inputs", "Look", "Patch", "Source", "Span", "is_plain", "register_patches"]

Source = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """What a model is called with.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.

    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def replace(self, given: Source, what: str, instead: str = "") -> Inputs:
        """Return others: a tensor or a tuple in place of `args`, a mapping in place of `kwargs`.

        Of a model that is called with both, the other half stays.

        Args:
            given: the tensor, tuple or mapping.
            what: how a message calls it.
            instead: what else it may be.

        Raises:
            TypeError: it is none of these.

        """
        both = bool(self.args and self.kwargs)
        if isinstance(given, (Tensor, tuple)):
            args = given if isinstance(given, tuple) else (given,)
            return Inputs(args, self.kwargs if both else {})
        if isinstance(given, Mapping):
            return Inputs(self.args if both else (), dict(given))
        raise TypeError(
            f"{what} is of type {type(given).__name__}: give {instead}a tensor, a tuple of positional arguments, or a "
            "dict of keyword arguments"
        )

    def written(self, args: str = "inputs", kwargs: str = "kwargs") -> str:
        """Write them as they stand in a call, of variables with these names."""
        return ", ".join([f"*{args}"] * bool(self.args) + [f"**{kwargs}"] * bool(self.kwargs))

    @property
    def samples(self) -> int:
        """How many samples there are, in a list of images, too; 0 if that cannot be said."""
        return samples_in((*self.args, *self.kwargs.values())) or self.rows

    @property
    def rows(self) -> int:
        """How long the first tensor is, along which a batch of variants grows; 0 if there is none."""
        first = next((tensor for tensor in find_tensors((self.args, self.kwargs)) if tensor.dim()), None)
        return 0 if first is None else len(first)

    def run(self, model: nn.Module, times: int = 1) -> Any:
        """Call a model with copies, which it may write to; with all samples several times, one after the other."""
        rows = self.rows if times > 1 else 0

        def copy(tensor: Tensor) -> Tensor:
            if rows and tensor.dim() and len(tensor) == rows:
                return tensor.repeat(times, *[1] * (tensor.dim() - 1))
            return tensor.clone()

        # With `say`, what holds no tensor yet is copied, too: a pass may fill it, as it does an empty KV cache.
        args, kwargs = tree_map(copy, (self.args, self.kwargs), note=lambda _: None)
        return model(*args, **kwargs)


@dataclass(eq=False)
class Span:
    """One call of one module, from its begin to its end, both as numbers that grow.

    Attributes:
        module: the module.
        begin: when it began.
        parent: the call that it is a part of.
        end: when it returned; infinite if it did not.
        alone: whether nobody else can tell whether it ran: it wrote to nothing that it was given, and returned
            something of its own, made of tensors and plain containers.

    """

    module: nn.Module
    begin: int
    parent: Span | None
    end: float = float("inf")
    alone: bool = False
    given: tuple[list[Tensor], list[float]] = field(default=([], []), repr=False)


def is_plain(value: Any) -> bool:
    """Whether a value is made of tensors, numbers, strings, None, and tuples, lists and dicts of them."""
    if value is None or isinstance(value, (Tensor, bool, int, float, str)):
        return True
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return isinstance(value, Mapping) and all(map(is_plain, value.values()))


class Look:
    """A hook that hands on what a module returned.

    Args:
        keep: what to do with it.

    """

    def __init__(self, keep: Callable[[nn.Module, Any], None]) -> None:
        self._keep = keep

    def register(self, modules: Iterable[nn.Module]) -> Iterator[RemovableHandle]:
        """Register the hook on each module."""
        for module in modules:
            yield module.register_forward_hook(self.after)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Hand on what was returned."""
        self._keep(module, output)

    after.__qualname__ = "hookscope.sweep"  # what a census shows


class CallLog:
    """Hooks that note what a pass did.

    Args:
        keep: what to make of what a call returned; nothing is kept without it.

    Attributes:
        spans: the calls, in the order in which they began.
        kept: what was made of what each module returned.

    """

    def __init__(self, keep: Callable[[nn.Module, Any], Any] | None = None) -> None:
        self.spans: list[Span] = []
        self.kept: dict[nn.Module, Any] = {}
        self._keep = keep
        self._running: list[Span] = []
        self._clock = 0

    def register(self, modules: Iterable[nn.Module]) -> Iterator[RemovableHandle]:
        """Register both hooks on each module."""
        for module in modules:
            yield module.register_forward_pre_hook(self.before, with_kwargs=True)
            yield module.register_forward_hook(self.after, with_kwargs=True)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note that a call begins."""
        self._clock += 1
        span = Span(module, self._clock, self._running[-1] if self._running else None)
        given = find_tensors((args, kwargs))
        span.given = (given, [_get_version(tensor) for tensor in given])
        self.spans.append(span)
        self._running.append(span)

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note that a call has returned."""
        while self._running and self._running[-1].module is not module:
            self._running.pop()  # an exception, which the model caught, left it
        if not self._running:
            return
        span = self._running.pop()
        self._clock += 1
        span.end = self._clock
        tensors, versions = span.given
        span.given = ([], [])
        if is_plain(output) and versions == [_get_version(tensor) for tensor in tensors]:
            before = {_get_address(tensor) for tensor in tensors}
            span.alone = all(_get_address(tensor) not in before for tensor in find_tensors(output))
        if self._keep is not None:
            self.kept[module] = self._keep(module, output)

    before.__qualname__ = after.__qualname__ = "hookscope.sweep"  # what a census shows


def _get_version(tensor: Tensor) -> float:
    # Of an inference tensor nobody knows: NaN is never the same again.
    return float("nan") if tensor.is_inference() else tensor._version


def _get_address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a kind of tensor without
        return -1


class Patch:
    """The hook that looks at, or changes, what flows at one place.

    Args:
        place: where.
        change: gets the tensor there, and returns another one to put in its place, or None.

    Attributes:
        calls: how often the layer was called.
        done: how often that was the call that is meant.
        way: how one gets there from what the layer returned or was given, step by step.

    """

    def __init__(self, place: Site, change: Callable[[Tensor], Tensor | None]) -> None:
        self.place, self._change = place, change
        self.calls = self.done = 0
        self.way: tuple[tuple[str, Any], ...] = ()
        self._begins = False

    def register(self, stack: ExitStack) -> None:
        """Register the hook; the stack removes it."""
        module = self.place.module
        if self.place.to == "input":
            stack.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)
        elif self.place.to == "output":
            stack.callback(module.register_forward_hook(self.after).remove)
        else:
            stack.callback(module.register_forward_pre_hook(self.begin).remove)
            replaced = PatchedForward(module, self._intercept)
            stack.callback(replaced.remove)
            replaced.install()

    def begin(self, module: nn.Module, args: Any) -> None:
        """Count a call of a layer that is to be changed inside."""
        self.calls += 1
        self._begins = self.place.call in (None, self.calls)

    def _intercept(self) -> CallInterceptor | None:
        begins, self._begins = self._begins, False
        return CallInterceptor(self.place.module, self._change_heads) if begins else None

    def _change_heads(self, tensor: Tensor) -> Tensor:
        self.done += 1
        new = self._change(tensor)
        return tensor if new is None else new

    def _apply(self, value: Any) -> Any:
        self.calls += 1
        if self.place.call not in (None, self.calls):
            return None
        self.done += 1
        path = self.place.find_path(value)
        new = self._change(self.place.get_tensor(value, path))
        self.way = self.way or keys(value, path)
        return None if new is None else put(value, path, new)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Change what the layer is given."""
        given = self._apply({**dict(enumerate(args)), **kwargs})
        if given is None:
            return None
        return tuple(given[number] for number in range(len(args))), {key: given[key] for key in kwargs}

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Change what the layer returned."""
        return self._apply(output)

    before.__qualname__ = after.__qualname__ = begin.__qualname__ = "hookscope.sweep"

    def check_calls(self, modules: Modules, runs: str) -> None:
        """Raise unless the layer was called, and once if nothing says which call is meant."""
        place = self.place
        if not self.calls:
            why = why_not_called(modules, place.name, place.module, 1)
            what = place.label if place.to == "output" else place.name  # heads: their output projection
            raise NotEditedError([f"layer {what!r} {why} ({runs})"])
        if not self.done:
            times = "once" if self.calls == 1 else f"{self.calls} times"
            unseen = f", but {UNSEEN_HEADS}" if place.to == "heads" and (place.call or 1) <= self.calls else ""
            raise NotEditedError([f"layer {place.label!r}: the layer was called {times}{unseen} ({runs})"])
        if self.done > 1:
            named = [f"{place.label}#{number}" for number in range(1, self.calls + 1)]
            raise NotEditedError(
                [
                    f"layer {place.label!r} was called {self.calls} times ({runs}): {', '.join(named[:8])}"
                    f"{', …' if len(named) > 8 else ''}; a sweep changes one call at a time, so name the one you mean"
                ]
            )


@contextmanager
def register_patches(
    patches: Iterable[Patch], watch: CallLog | Look | None = None, watched: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Register hooks, and remove all of them in the end."""
    with ExitStack() as stack:
        if watch is not None:
            for handle in watch.register(watched):
                stack.callback(handle.remove)
        for patch in patches:
            patch.register(stack)
        yield
