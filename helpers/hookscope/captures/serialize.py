"""Write values of any structure as JSON and named tensors, and read them: no code is in it, and none runs."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hookscope.captures.call import Missing, Slot
from hookscope.captures.stats import Stats

__all__ = ["Decoder", "Encoder", "Fields", "expect", "parse_dtype"]

_DEEP = 20  # levels of structure that are written, as tree_map follows
_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple, "list": list, "set": set, "frozenset": frozenset, "deque": deque, "Size": torch.Size,
}  # fmt: skip


class Fields(dict[str, Any]):
    """A mapping of somebody's class, such as a ModelOutput, without the class: by key, by attribute and by number."""

    def __init__(self, kind: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._kind = kind

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            if isinstance(key, int):
                return list(self.values())[key]
            raise

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("_"):  # asked while it is being copied
            raise AttributeError(name)
        raise AttributeError(f"the {self._kind} has no {name!r}; there are {', '.join(map(repr, self))}")

    def __repr__(self) -> str:
        return f"{self._kind}({', '.join(f'{key}={value!r}' for key, value in self.items())})"


class Encoder:
    """One file's worth of values.

    Attributes:
        tensors: by the names that stand for them in what `of` returns; dense, of bytes that are theirs alone.
        losses: what could not be written as it was, as keys.

    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.losses: dict[str, None] = {}
        self._name = ""
        self._inside: list[int] = []  # ids of what is being written, outermost first

    def named(self, name: str, value: Any) -> Any:
        """Write a value whose tensors are called `name`, and `name/1` and so on."""
        self._name = name
        return self.of(value)

    def of(self, value: Any) -> Any:
        """Return what JSON can hold."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._inside or len(self._inside) > 4 * _DEEP:
            return self._gone(value, "is part of itself")
        self._inside.append(id(value))
        try:
            return self._of(value)
        finally:
            self._inside.pop()

    def _of(self, value: Any) -> Any:
        kind = type(value).__name__
        if isinstance(value, Slot):
            grads = [self.of(grad) for grad in value.grads]
            kept = self.of(value.__getstate__()["value"])
            return {"is": "slot", "value": kept, "needs_grad": value.needs_grad, "grads": grads,
                    "shape": list(value.shape)}  # fmt: skip
        if isinstance(value, Stats):
            return {"is": "stats", "of": [list(value.shape), _word(value.dtype), *value[2:]]}
        if isinstance(value, Missing):
            return {"is": "missing", "text": value.text}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return {"is": "array", "of": self._tensor(torch.from_numpy(value.astype(value.dtype.newbyteorder("="))))}
        if isinstance(value, np.generic):
            if isinstance(item := value.item(), np.generic):
                return self._gone(value, "is no number that Python has")
            if value.dtype.kind in "biufcUS":
                return {"is": "number", "kind": value.dtype.str, "of": self.of(item)}
            self._lose(f"a {kind} is read as the {type(item).__name__} that it holds")
            return self.of(item)
        if isinstance(value, torch.dtype | torch.device):
            return {"is": type(value).__name__, "of": _word(value)}
        if isinstance(value, complex):
            return {"is": "complex", "of": [value.real, value.imag]}
        if isinstance(value, bytes):
            return {"is": "bytes", "of": value.hex()}
        if isinstance(value, tuple | list | set | frozenset | deque):
            return self._sequence(value, kind)
        if isinstance(value, Mapping):
            return self._mapping(value, kind)
        if callable(value) or isinstance(value, nn.Module | type):
            return self._gone(value, "is code")
        return self._object(value, kind)

    def _tensor(self, tensor: Tensor) -> Any:
        plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
        if not plain or type(tensor) not in (Tensor, nn.Parameter):
            what = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else _word(tensor.layout)
            return self._gone(tensor, f"is {what}, on {tensor.device}, and safetensors hold dense tensors")
        name, number = self._name, 1
        while name in self.tensors:
            name, number = f"{self._name}/{number}", number + 1
        own = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).cpu()
        # As bytes: any dtype, also those that the format has no word for.
        self.tensors[name] = own.reshape(-1).view(torch.uint8) if own.dtype not in _PLAIN else own
        return {"is": "tensor", "name": name, "dtype": _word(own.dtype), "shape": list(own.shape)}

    def _sequence(self, value: Any, kind: str) -> Any:
        items = [self.of(item) for item in value]
        if isinstance(value, PackedSequence):
            return {"is": "PackedSequence", "of": items}
        if getattr(torch.return_types, kind, None) is type(value):
            return {"is": "return_type", "kind": kind, "of": items}
        if hasattr(value, "_fields"):
            return {"is": "named", "kind": kind, "fields": list(value._fields), "of": items}
        if kind not in _SEQUENCES:
            self._lose(f"a {kind} is read as the plain sequence that it is")
            kind = next(name for name, plain in _SEQUENCES.items() if isinstance(value, plain))  # type: ignore[arg-type]
        return {"is": kind, "of": items} | ({"most": value.maxlen} if kind == "deque" else {})

    def _mapping(self, value: Mapping[Any, Any], kind: str) -> Any:
        if type(value) not in (dict, OrderedDict, MappingProxyType, Fields):
            self._lose(f"a {kind} is read as its fields, without its class")
        kind = value._kind if isinstance(value, Fields) else kind
        items = [[self._key(key), self.of(item)] for key, item in value.items()]
        return {"is": "mapping", "kind": kind, "of": items}

    def _key(self, key: Any) -> Any:
        """Write a key: as what it is, or as what can be one where it is read."""
        if isinstance(key, Enum):
            self._lose(f"a key {key} is read as {key.value!r}")
            key = key.value
        plain = key is None or isinstance(key, str | int | float | bytes | torch.dtype | torch.device)
        if not plain and not (type(key) is tuple and all(each is None or isinstance(each, str | int) for each in key)):
            self._lose(f"a key that is a {type(key).__name__} is read as text")
            key = str(key)
        return self.of(key)

    def _object(self, value: Any, kind: str) -> Any:
        slots = (getattr(each, "__slots__", ()) for each in type(value).__mro__)
        names = [*getattr(value, "__dict__", {})]
        names += [name for group in slots for name in ([group] if isinstance(group, str) else group)]
        found = {name: getattr(value, name) for name in names if hasattr(value, name) and not name.startswith("__")}
        if not found:
            return self._gone(value, "has nothing that could be written")
        if type(value) is not SimpleNamespace:
            self._lose(f"a {kind} is read as its attributes, without its class")
        return {"is": "object", "of": {name: self.of(item) for name, item in found.items()}}

    def _gone(self, value: Any, why: str) -> Any:
        text = f"a {type(value).__name__} was not saved: it {why}"
        self._lose(text)
        return {"is": "missing", "text": text}

    def _lose(self, text: str) -> None:
        self.losses[text] = None


class Decoder:
    """Reads what `Writing` wrote, and refuses the rest: a file may come from anybody, and claim anything.

    Nothing is allocated that the file does not hold, and each of its tensors stands for one value.

    Args:
        tensors: those of the file, by name.

    Attributes:
        kept: what a slot holds of a tensor, `Tensor` or `Stats`.

    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._named_tuples: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._depth = 0
        self.kept: type = Tensor

    def of(self, node: Any) -> Any:
        """Return the value.

        Raises:
            Exception: of any kind, where `Writing` wrote something else.

        """
        if node is None or type(node) in (bool, int, float, str):
            return node
        kind, of = expect(node, dict)["is"], node.get("of")
        if expect(kind, str) not in _KINDS:
            raise ValueError(f"there is no kind of value {kind!r:.80}")
        if self._depth > 4 * _DEEP + 2:
            raise ValueError("values are nested deeper than any that are saved")
        self._depth += 1
        try:
            return self._sequence(node, of) if kind in _SEQUENCES else getattr(self, f"_{kind}")(node, of)
        finally:
            self._depth -= 1

    def _items(self, nodes: Any) -> list[Any]:
        return [self.of(node) for node in expect(nodes, list)]

    def _sequence(self, node: Any, of: Any) -> Any:
        items = _shape(of) if node["is"] == "Size" else self._items(of)
        return deque(items, node["most"]) if node["is"] == "deque" else _SEQUENCES[node["is"]](items)

    def _slot(self, node: Any, of: Any) -> Slot:
        value, grads, shape = self.of(node["value"]), self._items(node["grads"]), _shape(node["shape"])
        for each in (value, *grads):
            if not isinstance(each, (self.kept, Missing)):
                raise TypeError(f"found {type(each).__name__}, expected {self.kept.__name__}")
        slot = Slot(value, expect(node["needs_grad"], bool), shape if "?" in shape else torch.Size(shape))
        slot.grads = grads
        return slot

    def _stats(self, node: Any, of: Any) -> Stats:
        shape, dtype, *numbers = expect(of, list)
        return Stats(_shape(shape), parse_dtype(dtype), *(expect(number, int, float) for number in numbers))

    def _missing(self, node: Any, of: Any) -> Missing:
        return Missing(expect(node["text"], str))

    def _tensor(self, node: Any, of: Any) -> Tensor:
        dtype, shape = parse_dtype(node["dtype"]), _shape(node["shape"])
        stored = self._tensors.pop(node["name"])
        if stored.dtype is not dtype:
            # A copy, since bytes may begin anywhere.
            stored = stored.clone().view(dtype).reshape(shape)
        if stored.shape != shape:
            raise ValueError(f"a tensor of shape {tuple(stored.shape)} is said to have another")
        return stored

    def _array(self, node: Any, of: Any) -> Any:
        return self._tensor(of, None).numpy().copy()

    def _number(self, node: Any, of: Any) -> Any:
        dtype, value = np.dtype(expect(node["kind"], str)), self.of(of)
        # Not with a number for bytes or text: NumPy would make as many of them.
        kinds = {"S": (bytes,), "U": (str,)} | dict.fromkeys("biufc", (bool, int, float, complex))
        return dtype.type(expect(value, *kinds[dtype.kind]))

    def _dtype(self, node: Any, of: Any) -> torch.dtype:
        return parse_dtype(of)

    def _device(self, node: Any, of: Any) -> torch.device:
        return torch.device(expect(of, str))

    def _complex(self, node: Any, of: Any) -> complex:
        real, imag = (expect(part, int, float) for part in expect(of, list))
        return complex(real, imag)

    def _bytes(self, node: Any, of: Any) -> bytes:
        return bytes.fromhex(of)

    def _PackedSequence(self, node: Any, of: Any) -> PackedSequence:  # noqa: N802
        return PackedSequence._make(expect(item, Slot, Tensor, type(None)) for item in self._items(of))

    def _return_type(self, node: Any, of: Any) -> Any:
        made = getattr(torch.return_types, expect(node["kind"], str), None)
        if not (isinstance(made, type) and issubclass(made, tuple)):
            raise ValueError(f"torch has no return type {node['kind']!r:.80}")
        return made(self._items(of))

    def _named(self, node: Any, of: Any) -> Any:
        key = (expect(node["kind"], str), *(expect(name, str) for name in expect(node["fields"], list)))
        if key not in self._named_tuples:
            if len(self._named_tuples) >= _MOST_NAMED:  # each is a class, which takes time to make
                raise ValueError(f"there are more than {_MOST_NAMED:,} kinds of named tuples")
            self._named_tuples[key] = namedtuple(key[0], key[1:])
        return self._named_tuples[key](*self._items(of))

    def _mapping(self, node: Any, of: Any) -> Any:
        items = {self.of(key): self.of(item) for key, item in expect(of, list)}
        plain: dict[str, Callable[[Any], Any]] = {"dict": dict, "OrderedDict": OrderedDict}
        plain["mappingproxy"] = MappingProxyType
        kind = expect(node["kind"], str)
        return plain[kind](items) if kind in plain else Fields(kind, items)

    def _object(self, node: Any, of: Any) -> SimpleNamespace:
        if special := [name for name in expect(of, dict) if name.startswith("__")]:
            raise ValueError(f"an attribute {special[0]!r:.80} is never saved")
        return SimpleNamespace(**{name: self.of(item) for name, item in of.items()})


def expect(value: Any, *kinds: type) -> Any:
    """Return a value that is of one of these types, and of no class derived from them: a bool is no int here.

    Raises:
        TypeError: it is of another.

    Example:
        >>> expect(True, int)
        Traceback (most recent call last):
        TypeError: found bool, expected int

    """
    if type(value) not in kinds:
        raise TypeError(f"found {type(value).__name__}, expected {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _shape(sides: Any) -> tuple[Any, ...]:
    for side in expect(sides, list):
        if side != "?" and not 0 <= expect(side, int) < 1 << 63:
            raise ValueError(f"a shape has a side of {side}")
    return tuple(sides)


def parse_dtype(name: Any) -> torch.dtype:
    """Return the dtype of torch that is written so, without `torch.` before it.

    Raises:
        LookupError: there is none.

    Example:
        >>> parse_dtype("float32")
        torch.float32

    """
    return _DTYPES[expect(name, str)]


def _word(value: object) -> str:
    return str(value).removeprefix("torch.")


_PLAIN = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
_DTYPES = {_word(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_KINDS = {
    *_SEQUENCES, "PackedSequence", "array", "bytes", "complex", "device", "dtype", "mapping", "missing", "named",
    "number", "object", "return_type", "slot", "stats", "tensor",
}  # fmt: skip
_MOST_NAMED = 1000
