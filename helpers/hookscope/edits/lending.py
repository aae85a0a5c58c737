"""Put edited tensors into the very lists, dicts and objects that a layer is given, and take them out after its call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import get_ident
from types import MemberDescriptorType
from typing import Any

from torch import Tensor

from hookscope.structures import tensors_in

__all__ = [
    "Attribute", "BorrowedError", "Lent", "Loan", "lend", "on_loan", "put_at", "refuse_borrowed", "take_back", "there",
    "written_to",
]  # fmt: skip


class Attribute(str):
    """The name of an attribute, as opposed to a key."""


class BorrowedError(RuntimeError):
    """Two threads would edit what is in one container."""


@dataclass(eq=False, slots=True)
class Loan:
    """What was lent.

    Attributes:
        holder: a list, mapping or object.
        key: where in it: an index, a key, or an `Attribute`.
        was: what was there.
        now: what is there now.
        new: the tensors in that which were not there before, and how often each had been written to.
        thread: which thread has lent it.

    """

    holder: Any
    key: Any
    was: Any
    now: Any
    new: list[tuple[Tensor, int]] = field(init=False)
    thread: int = field(default_factory=get_ident)

    def __post_init__(self) -> None:
        before = {id(tensor) for tensor in tensors_in(self.was)}
        new = [each for each in tensors_in(self.now) if id(each) not in before and not each.is_inference()]
        self.new = [(each, each._version) for each in new]

    def place(self) -> Any:
        """Return where it is in its holder; None if it is there no longer."""
        places = range(len(self.holder)) if isinstance(self.holder, list) else [self.key]
        return next((place for place in places if there(self.holder, place) is self.now), None)


Lent = list[Loan]
_all: Lent = []  # of every edit, in the order in which they were made
_lenders: set[int] = set()  # the threads that have lent anything, ever
_BORROWED = (
    "another thread is running the model with the same container, in which it has put edited values; give each thread "
    "one of its own"
)


def refuse_borrowed(found: Any, again: Callable[[], Any]) -> None:
    """Raise if something was found in a container because another thread had lent it there.

    Args:
        found: what was found.
        again: looks once more: the other thread may have taken it back since.

    Raises:
        BorrowedError: it was.

    """
    here = get_ident()
    if not _lenders - {here}:
        return
    borrowed = any(each.thread != here and any(new is found for new, _ in each.new) for each in [*_all])
    if borrowed or again() is not found:
        raise BorrowedError(_BORROWED)


def lend(holder: Any, key: Any, was: Any, now: Any, lent: Lent) -> bool:
    """Put something into a list, a mapping or an object; return whether that worked.

    A layer may hand something on through what it is given, as through a KV cache, so it has to be that very object.

    Args:
        holder: what a layer is to be called with, or is inside of that.
        key: where in it: an index, a key, or an `Attribute`.
        was: what is there.
        now: what is to be there.
        lent: is told of it, before it is done: an interrupt may come at any time.

    Raises:
        BorrowedError: another thread has lent something there.

    Example:
        >>> given, lent = {"h": 1}, []
        >>> lend(given, "h", 1, 10, lent), given
        (True, {'h': 10})
        >>> given["new"] = 4
        >>> take_back(lent)
        >>> given
        {'h': 1, 'new': 4}

    """
    if there(holder, key) is not was:
        return False  # a property that computes it anew each time
    attribute, had = isinstance(key, Attribute), key in _own(holder)
    loan = Loan(holder, key, was, now)
    lent.append(loan)
    _all.append(loan)
    if any(each.holder is holder and each.thread != loan.thread for each in [*_all]):
        lent.remove(loan)
        _all.remove(loan)
        raise BorrowedError(_BORROWED)
    _lenders.add(loan.thread)
    try:
        put_at(holder, key, now)
        if attribute and not had and key in _own(holder):
            loan.was = _ABSENT  # it came from the class, or from an object behind this one
        if there(holder, key) is now:
            if not attribute and had and _own(holder)[key] is was:
                lend(holder, Attribute(key), was, now, lent)  # an entry and an attribute at the same time
            return True
        put_at(holder, key, loan.was)  # it turns what it is given into something of its own
    except Exception:  # whatever a class of somebody else's raises: it is read-only
        pass
    lent.remove(loan)
    _all.remove(loan)
    return False


def take_back(lent: Lent) -> None:
    """Put back what was there, where it still is; what the layer has put there itself stays. As often as you like."""
    for loan in lent[::-1]:
        if (place := loan.place()) is not None:
            put_at(loan.holder, place, loan.was)
        else:
            # Another edit has lent something on top: it is to put back what was there before both.
            for above in (each for each in _all if each.holder is loan.holder and each.was is loan.now):
                above.was = loan.was
        for each in (_all, lent):
            with suppress(ValueError):  # another thread, which leaves the block, has done so
                each.remove(loan)


def written_to(lent: Lent) -> bool:
    """Whether somebody has written in place to a tensor that was lent: when it is taken back, that is gone."""
    return any(each._version != version for loan in lent if loan.place() is not None for each, version in loan.new)


def on_loan(lent: Lent) -> list[tuple[Any, Any, Any]]:
    """List what is lent now: a list, mapping or object, where in it, and what is there."""
    return [(loan.holder, place, loan.now) for loan in lent if (place := loan.place()) is not None]


def there(holder: Any, key: Any) -> Any:
    """Return what is at a key, index or `Attribute`; None if there is nothing."""
    if isinstance(key, Attribute):
        return getattr(holder, key, None)
    return holder[key] if not isinstance(holder, Mapping) or key in holder else None


def put_at(holder: Any, key: Any, value: Any) -> None:
    """Put something at a key, index or `Attribute`, as the class of the holder would."""
    if not isinstance(key, Attribute):
        holder[key] = value
    elif value is _ABSENT:
        delattr(holder, key)
    elif key in _own(holder) or isinstance(getattr(type(holder), key, None), MemberDescriptorType):
        object.__setattr__(holder, key, value)  # also where the class is frozen, as that of a dataclass may be
    else:
        setattr(holder, key, value)  # it has it elsewhere


_ABSENT = object()
"""What was there where an object had nothing of its own."""


def _own(holder: Any) -> Any:
    """Return what an object has in attributes; not a dict that is its own attributes, whose entries they are."""
    own = getattr(holder, "__dict__", {})
    return {} if own is holder else own
