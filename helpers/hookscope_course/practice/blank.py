"""The blank `____` that a learner replaces, and whether an answer still has one in it."""

from __future__ import annotations

import ast
import dis
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, ClassVar


class Blank:
    """What `____` is: it stands in for whatever the learner has not written yet.

    Operators, calls, attributes, indexing, loops, `with` and torch functions take it and give it back. Only a call
    that insists on an integer, a string or a module still raises (`range(____)`, `nn.Sequential(____)`): there, put
    the blank inside a function, whose code the check does not run.

    >>> import torch
    >>> (____ + 1).mean(dim=____)[0], torch.relu(____), len(____)
    (____, ____, 0)
    >>> weight, bias = ____
    """

    __slots__ = ()
    uses: ClassVar[int] = 0  # grows with every use, so that a check can tell that it ran into a blank

    def __repr__(self) -> str:
        return "____"

    def __format__(self, spec: str) -> str:
        return "____"

    def __reduce__(self) -> str:
        return "____"  # copies and pickles are this very blank

    def __getattr__(self, name: str) -> Any:
        # Protocols (copying, display, arrays) must see that they are not implemented.
        if name.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(name)
        return _stand_in(self)

    def __iter__(self) -> Iterator[Any]:
        """Give `a, b = ____` as many blanks as it asks for, and any other loop one."""
        Blank.uses += 1
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        match dis.opname[code[at]]:
            case "UNPACK_SEQUENCE":
                count = code[at + 1]
            case "UNPACK_EX":  # a, *rest, z = ____ counts the names after the star in the argument's high byte
                count = code[at + 1] + (code[at - 1] if code[at - 2] == dis.EXTENDED_ARG else 0)
            case _:
                count = 1
        return iter([____] * count)

    def __index__(self) -> int:
        """Be 0 in `losses[____]`, but no integer to `x.mean(dim=____)`: torch would take it for a real dim."""
        frame = sys._getframe(1)
        if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL"):
            raise TypeError("____ is not an integer yet")
        Blank.uses += 1
        return 0

    def __array__(self, *_: object, **__: object) -> Any:
        import numpy as np

        Blank.uses += 1
        return np.array(np.nan)

    @classmethod
    def __torch_function__(cls, *_: object) -> Any:
        return _stand_in(cls)


def _stand_in(*_: object, **__: object) -> Any:
    Blank.uses += 1
    return ____


def _stand_in_as(value: object) -> Callable[..., Any]:
    def convert(*_: object) -> Any:
        Blank.uses += 1
        return value

    return convert


_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_STAND_INS: dict[str, Callable[..., Any]] = {
    f"{_OPERATORS} r{_OPERATORS.replace(' ', ' r')}": _stand_in,
    "lt le gt ge eq ne neg pos abs invert round trunc floor ceil reversed next": _stand_in,
    "call getitem enter array_ufunc array_function": _stand_in,
    "setitem delitem setattr delattr exit": _stand_in_as(None),
    "bool contains instancecheck subclasscheck": _stand_in_as(False),
    "len int hash": _stand_in_as(0),
    "float": _stand_in_as(0.0),
    "complex": _stand_in_as(0j),
    "mro_entries": _stand_in_as(()),  # class Hook(____):
}
for _names, _method in _STAND_INS.items():
    for _name in _names.split():
        setattr(Blank, f"__{_name}__", _method)

____: Any = Blank()


def holds_blank(answer: object) -> bool:
    """Whether ____ is the answer, is in it, or is still named by its code."""
    todo = [answer, type(answer), *getattr(answer, "__dict__", {}).values()]
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        match value:
            case Blank():
                return True
            case str() if value.strip() == "____":
                return True
            case CodeType():
                if "____" in (*value.co_names, *value.co_varnames):
                    return True
                todo += value.co_consts
            case FunctionType():
                todo += [value.__code__, value.__defaults__, value.__kwdefaults__]
                todo += [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
                todo += [getattr(value, "__wrapped__", None)]
            case MethodType() | staticmethod() | classmethod():
                todo += [value.__func__]
            case property():
                todo += [value.fget, value.fset]
            case partial():
                todo += [value.func, value.args, value.keywords]
            case type():
                todo += [part for cls in value.__mro__ for part in vars(cls).values()]  # __orig_bases__ too
            case dict():
                todo += [*value, *value.values()]
            case list() | tuple() | set() | frozenset() | deque():
                todo += value
    return False


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def cell_of(caller: FrameType) -> str:
    """The source of the notebook cell that runs; nothing for code in a file."""
    entry = linecache.cache.get(caller.f_code.co_filename)
    if entry is None or len(entry) < 4 or entry[1] is not None:  # a cell is kept without a file's time
        return ""
    return "".join(entry[2])


def cell_names_blank(caller: FrameType) -> bool:
    """Whether the notebook cell that runs names ____; the value of `losses[____]` would not tell."""
    try:
        nodes = ast.walk(ast.parse(cell_of(caller)))
    except SyntaxError:
        return False
    return any("____" in (getattr(node, part, "") for part in ("id", "attr", "arg")) for node in nodes)
