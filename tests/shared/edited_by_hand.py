"""What edits should do, written once more with plain hooks: a mask over the tensor, and `torch.where`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.edits.edit import Edit
from tests.shared.awkward import tensor_map, tensors_in

MAKES: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "set": (0.25, lambda t: torch.full_like(t, 0.25)),
    "add": (1.5, lambda t: t + 1.5),
    "scale": (-2.0, lambda t: t * -2.0),
    "map": (torch.sin, torch.sin),
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """One edit: which layer, what, and where."""

    layer: str
    verb: str
    to: str
    place: int  # which tensor of the structure, counted in its order
    path: tuple[Any, ...]
    at: Any
    rows: list[int] | None
    call: int | None

    def give(self, e: Edit) -> None:
        """Ask for it."""
        calls = None if self.call is None else {self.call}
        part = self.path or None
        make, _ = MAKES[self.verb]
        getattr(e, self.verb)(self.layer, make, self.at, to=self.to, part=part, rows=self.rows, calls=calls)

    def on(self, tensor: Tensor) -> Tensor:
        """Do it to one tensor."""
        places = torch.arange(tensor.numel()).reshape(tensor.shape)
        if self.rows is not None:
            places = places[self.rows]
        aimed = torch.zeros(tensor.numel(), dtype=torch.bool)
        aimed[places[self.at].flatten()] = True
        return torch.where(aimed.reshape(tensor.shape), MAKES[self.verb][1](tensor.clone()), tensor)

    def within(self, value: Any) -> Any:
        """Do it to the tensor that is meant in a structure."""
        numbers = iter(range(10**6))
        return tensor_map(lambda t: self.on(t) if next(numbers) == self.place else t, value)


@contextmanager
def by_hand(model: nn.Module, specs: list[Spec]) -> Iterator[None]:
    """Put hooks on that do the same as the edits."""
    handles = []

    def hook(spec: Spec) -> None:
        running: list[int] = []
        count = iter(range(1, 10**6))

        def before(module: nn.Module, args: Any) -> Any:
            running.append(next(count))
            return spec.within(args) if spec.to == "input" and spec.call in (None, running[-1]) else None

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            number = running.pop()
            return spec.within(output) if spec.to == "output" and spec.call in (None, number) else None

        layer = model.get_submodule(spec.layer)
        handles.append(layer.register_forward_pre_hook(before))
        handles.append(layer.register_forward_hook(after))

    for spec in specs:
        hook(spec)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclasses.dataclass
class Seen:
    """One call of a layer: the paths and shapes of its tensors; None for the shape of what takes no fractions."""

    layer: str
    number: int
    to: str
    tensors: list[tuple[tuple[Any, ...], tuple[int, ...] | None]]


def calls_of(model: nn.Module, args: tuple[Any, ...]) -> list[Seen]:
    """Run once, and list what could be edited."""
    seen: list[Seen] = []
    handles = []
    for name, layer in model.named_modules():
        count: list[int] = []

        def after(module, args, output, name=name, count=count) -> None:
            count.append(1)
            seen.append(Seen(name, len(count), "input", paths(args)))
            seen.append(Seen(name, len(count), "output", paths(output)))

        handles.append(layer.register_forward_hook(after))
    try:
        model(*args)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], tuple[int, ...] | None]]:
    """List path and shape of the tensors of a structure, in the order in which `tensor_map` meets them."""
    if isinstance(value, Tensor):
        plain = value.is_floating_point() and value.layout is torch.strided
        return [(path, tuple(value.shape) if plain else None)]
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    else:
        items = list(vars(value).items()) if hasattr(value, "__dict__") and not callable(value) else []
    return [found for key, item in items for found in paths(item, (*path, key))]


def outcome(model: nn.Module, args: tuple[Any, ...], around: Any) -> tuple[str, list[Tensor]]:
    """Run inside `around`, forward and backward: the error's type, and all there is afterwards."""
    torch.manual_seed(1)
    results: list[Any] = []
    error = ""
    try:
        with around:
            output = model(*args)
            results += tensors_in(output)
            loss = sum(t.abs().double().sum() for t in results if t.requires_grad)
            if isinstance(loss, Tensor):
                loss.backward()
    except (RuntimeError, IndexError) as raised:
        error = type(raised).__name__
        results = []
    if not error:
        # None and zeros are the same here: torch.where lets zeros through where an edit lets nothing through.
        leaves = [*model.parameters(), *(a for a in args if isinstance(a, Tensor) and a.is_leaf)]
        results += [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]
        results += [*model.buffers(), torch.get_rng_state()]
    return error, [t.detach() for t in results]
