"""The guard between a check and an answer: what a call changes that it should not is noted, whatever the check asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import _GeneratorContextManager
from functools import partial
from inspect import isgenerator, signature
from typing import Any, TypeVar

from torch import nn

from hookscope.censuses.census import record_handles
from hookscope_course.practice.snapshot import Snapshot

# While a generator waits, as in a `with` block, its hooks and its grad mode may be on; at its end they must be gone.
_WHILE_WAITING = ("hooks", "others' hooks", "settings")
Answer = TypeVar("Answer")


class Guard:
    """Notes the first thing that a call of an answer changed though nobody asked for it.

    A guarded function, hook, method, class or callable object is called as before, and has the same signature and
    attributes. What it returns, if that is a hook, or yields, is guarded as well.

    Args:
        allowed: the kinds of change that the exercise asks for (see `snapshot.KINDS`).

    Attributes:
        found: what was changed first, as a sentence, or None.

    Example:
        >>> import torch
        >>> guard = Guard()
        >>> hook = guard.guard(lambda module, args, output: output.mul_(2))
        >>> hook(None, (), torch.ones(1))
        tensor([2.])
        >>> guard.found
        'your lambda changed the numbers in `output`, which belongs to the caller; work on a copy'

    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.allowed = allowed
        self.found: str | None = None

    def guard(self, answer: Answer, called: str = "") -> Answer:
        """Return the answer, guarded if it can be called.

        Modules, context managers, containers and values are returned as they are.
        """
        if not callable(answer) or isinstance(answer, nn.Module | GuardedCallable) or _is_context_or_container(answer):
            return answer
        return GuardedCallable(self, answer, called or _describe_answer(answer))  # type: ignore[return-value]

    def call(self, function: Callable[..., Any], called: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, and note what it changed."""
        given = _name_arguments(function, args, kwargs)
        before, made = Snapshot(given), list[Any]()
        with record_handles(made, include_ours=False):
            result = function(*args, **kwargs)
        waits = isinstance(result, _GeneratorContextManager)
        if isgenerator(result) or waits:
            self._compare(before, made, called)
            steps = self._step_through(result.gen if waits else result, called, before, given)
            if not waits:
                return steps
            result.gen = steps
            return result
        self._compare(before, made, called)
        # A hook that was given and comes back is somebody else's.
        return result if any(result is arg for arg in (*args, *kwargs.values())) else self.guard(result, "your hook")

    def _compare(self, before: Snapshot, made: list[Any], called: str, also: Collection[str] = ()) -> None:
        for kind, did in before.find_changes([handle for handle, *_ in made]) if self.found is None else ():
            if kind not in (*self.allowed, *also):
                self.found = f"{called} {did}"
                return

    def _step_through(
        self, generator: Generator[Any, Any, Any], called: str, start: Snapshot, given: Mapping[str, object]
    ) -> Generator[Any, Any, Any]:
        """Go through a generator, and look after each step; at the end also at the hooks that it has left."""
        made, result = list[Any](), None
        step: Callable[[], Any] = generator.__next__
        while True:
            before = Snapshot(given)
            try:
                with record_handles(made, include_ours=False):
                    value = step()
            except StopIteration as stop:
                self._compare(before, made, called, also=_WHILE_WAITING)
                for kind, did in start.find_changes([]):
                    if kind in _WHILE_WAITING and kind not in self.allowed and self.found is None:
                        self.found = f"{called} {did}"
                return stop.value
            self._compare(before, made, called, also=_WHILE_WAITING)
            try:
                result = yield self.guard(value, "your hook")
                step = generator.__next__ if result is None else partial(generator.send, result)
            except GeneratorExit:
                generator.close()
                raise
            except BaseException as error:
                step = partial(generator.throw, error)


class GuardedCallable:
    """Stands for a callable, and lets a guard look at each call; in everything else it is that callable."""

    __slots__ = ("__weakref__", "_called", "_function", "_guard")

    def __init__(self, guard: Guard, function: Any, called: str) -> None:
        for name, value in {"_guard": guard, "_function": function, "_called": called}.items():
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and let the guard look."""
        return self._guard.call(self._function, self._called, args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(answer, type) stays what it was
        return type(self._function)

    @property
    def __wrapped__(self) -> Any:  # for inspect.signature
        return self._function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._function, name, value)

    def __repr__(self) -> str:
        return repr(self._function)

    def __eq__(self, other: object) -> bool:
        return bool(self._function == (other._function if type(other) is GuardedCallable else other))

    def __hash__(self) -> int:
        return hash(self._function)

    def __mro_entries__(self, bases: object) -> tuple[Any, ...]:
        return (self._function,)

    def __reduce__(self) -> tuple[Any, ...]:  # another process has no guard, or one of its own
        return _return_unguarded, (self._function,)


def _is_context_or_container(answer: object) -> bool:
    """Whether it is a context manager or a container, too: Python looks for their methods on the type."""
    return any(hasattr(type(answer), name) for name in ("__enter__", "__iter__", "__len__"))


def _return_unguarded(value: Any) -> Any:
    return value


def _describe_answer(answer: object) -> str:
    name = getattr(answer, "__name__", type(answer).__name__)
    return "your lambda" if name == "<lambda>" else f"`{name}`"


def _name_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, object]:
    """Name the arguments as the learner's code does."""
    try:
        return signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # it will be refused, or it is a builtin
        return {f"argument {index}": value for index, value in enumerate((*args, *kwargs.values()), start=1)}
