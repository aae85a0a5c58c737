"""What edits should do, written once more with plain hooks: a formula, numbers of places, and `torch.where`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import at, capture, census, edit
from hookscope.captures import Capture
from hookscope.interp.edits.edit import Edit
from tests.shared.awkward_models import Case, seed, tensor_map, tensors_in
from tests.shared.edit_formulas import KINDS, EditContext


class NotEditedError(RuntimeError):
    """What the hooks written by hand raise where an edit did not come about; tests compare the name."""


# --- what of a model could be edited


@dataclasses.dataclass
class EditableCall:
    """One call of a layer: the paths and shapes of its tensors; None for the shape of what takes no fractions."""

    layer: str
    number: int
    to: str
    tensors: list[tuple[tuple[Any, ...], tuple[int, ...] | None]]


def list_editable_calls(case: Case) -> list[EditableCall]:
    """Run once, and list what could be edited; of gradients, where grad is enabled, those that come in backward."""
    model, args, kwargs = case
    seen: list[EditableCall] = []
    handles = []
    for name, layer in model.named_modules():
        count: list[int] = []

        def after(module, args, kwargs, output, name=name, count=count) -> None:
            count.append(1)
            inputs, found = list_tensor_paths({**dict(enumerate(args)), **kwargs}), list_tensor_paths(output)
            grads = [(path, None) for path, _ in found] if torch.is_grad_enabled() else list(found)

            def store_gradient(grad: Tensor | None, index: int) -> None:
                if grad is not None:
                    grads[index] = found[index]

            seen.append(EditableCall(name, len(count), "input", inputs))
            seen.append(EditableCall(name, len(count), "output", found))
            seen.append(EditableCall(name, len(count), "grad", grads))
            for index, tensor in enumerate(tensors_in(output)):
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad, index=index: store_gradient(grad, index))

        handles.append(layer.register_forward_hook(after, with_kwargs=True))
    try:
        run_backward(model(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def list_tensor_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], tuple[int, ...] | None]]:
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
    return [found for key, item in items for found in list_tensor_paths(item, (*path, key))]


def run_backward(output: Any) -> None:
    """Run backward from all there is in an output, if anything needs it."""
    loss = sum(t.abs().double().sum() for t in tensors_in(output) if t.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()


# --- an edit, and hooks that do the same


@dataclasses.dataclass
class OtherRun:
    """A layer in another run: captured, and taken by hooks that clone."""

    seen: Capture
    kept: list[Tensor]


@dataclasses.dataclass(frozen=True)
class Spec:
    """One edit: which layer, what, and where."""

    layer: str
    kind: str
    to: str
    place: int  # which tensor of the structure, counted in its order
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    at: Any = ...
    rows: list[int] | None = None
    call: int | None = None
    other: OtherRun | None = dataclasses.field(default=None, repr=False)

    @property
    def region(self) -> tuple[int, ...]:
        """The shape of what the edit has."""
        return tuple(self.places(self.shape).shape)

    def places(self, shape: tuple[int, ...]) -> Tensor:
        """Number the values of a tensor, and give the numbers of those that are meant."""
        places = torch.arange(math.prod(shape)).reshape(shape)
        return (places if self.rows is None else places[self.rows])[self.at]

    def give(self, e: Edit) -> None:
        """Ask for it."""
        kind, calls, part = KINDS[self.kind], None if self.call is None else {self.call}, self.path or None
        where = {"to": self.to, "part": part, "samples": self.rows, "calls": calls}
        getattr(e, kind.verb)(self.layer, kind.value(self), self.at, **where)


@dataclasses.dataclass(eq=False)
class EditByHand:
    """One edit by hand, and the calls in which it came about."""

    spec: Spec
    done: set[int] = dataclasses.field(default_factory=set)

    def means(self, number: int) -> bool:
        """Whether a call is meant."""
        return self.spec.call in (None, number)

    def on(self, tensor: Tensor, number: int) -> Tensor:
        """Do it to one tensor."""
        spec, places = self.spec, self.spec.places(tuple(tensor.shape))
        here = EditContext(tensor, places, number, spec.other.kept if spec.other else [])
        whole = spec.at is ... and spec.rows is None
        new = KINDS[spec.kind].formula(tensor if whole else here.of(tensor), here)
        self.done.add(number)
        if whole:  # then no gradient goes to what was there before, not even zeros
            return new
        aimed = torch.zeros(tensor.numel(), dtype=torch.bool)
        aimed[places.flatten()] = True
        spread = torch.zeros(tensor.numel(), dtype=tensor.dtype).index_put((places,), new)
        changed = torch.where(aimed.reshape(tensor.shape), spread.reshape(tensor.shape), tensor)
        return torch.empty_like(tensor).copy_(changed)  # with the strides that it had

    def within(self, value: Any, number: int, then: Callable[[Tensor], Tensor] | None = None) -> Any:
        """Do it, or something else, to the tensor that is meant in a structure."""
        if not self.means(number):
            return value
        numbers = itertools.count()
        change = then or (lambda tensor: self.on(tensor, number))
        return tensor_map(lambda tensor: change(tensor) if next(numbers) == self.spec.place else tensor, value)


class Gradients:
    """Edits of gradients: one hook for each tensor as it is now, since an in-place operation makes another of it."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self._waiting: list[tuple[Tensor, Any, list[tuple[EditByHand, int]]]] = []

    def wait(self, tensor: Tensor, edits: list[tuple[EditByHand, int]]) -> None:
        """Make these edits, before those of a layer inside that has returned the same tensor."""
        for other, grad_fn, those in self._waiting:
            if other is tensor and grad_fn is tensor.grad_fn:
                those[:0] = edits
                return

        def hook(grad: Tensor | None) -> Tensor | None:
            if grad is None:  # as an autograd.Function may give
                return None
            for doing, number in edits:
                grad = doing.on(grad, number)
            return grad

        self._waiting.append((tensor, tensor.grad_fn, edits))
        self.handles.append(tensor.register_hook(hook))


def add_hooks(layer: nn.Module, edits: list[EditByHand], gradients: Gradients) -> list[Any]:
    """Put two hooks on a layer that do the same as its edits."""
    running: list[int] = []
    made: list[tuple[Tensor, int]] = []
    inputs, outputs, grads = ([each for each in edits if each.spec.to == to] for to in ("input", "output", "grad"))
    seen = 0

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal seen
        seen += not is_recomputing()
        running.append(seen)
        given: Any = {**dict(enumerate(args)), **kwargs}
        for doing in inputs:
            given = doing.within(given, seen)
        return tuple(given[place] for place in range(len(args))), {key: given[key] for key in kwargs}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        number = running.pop()
        given = tensors_in((args, kwargs))
        if grads and not is_recomputing():
            refuse_returned_again(output, given, number)
        for doing in outputs:
            output = doing.within(output, number)
        found: list[tuple[Tensor, list[tuple[EditByHand, int]]]] = []
        before = tensors_in(output)

        def wait(tensor: Tensor, doing: EditByHand) -> Tensor:
            if not (tensor.requires_grad and torch.is_grad_enabled()):
                return tensor
            if any(tensor is each for each in given) or tensor.is_leaf or sum(each is tensor for each in before) > 1:
                tensor = tensor.view_as(tensor)  # it has the gradient of this use alone
            those = next((edits for other, edits in found if other is tensor), None)
            if those is None:
                found.append((tensor, those := []))
            those.append((doing, number))
            return tensor

        for doing in grads:
            output = doing.within(output, number, lambda tensor, doing=doing: wait(tensor, doing))
        for tensor, those in found:
            gradients.wait(tensor, those)
        return output

    def refuse_returned_again(output: Any, given: list[Tensor], number: int) -> None:
        for tensor in tensors_in(output):
            earlier = next((call for other, call in made if other is tensor), number)
            if earlier != number and any(doing.means(number) or doing.means(earlier) for doing in grads):
                raise RuntimeError("one tensor of two calls has one gradient")
            if not any(tensor is each for each in given) and not tensor.is_leaf:
                made.append((tensor, number))

    return [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(after, with_kwargs=True),
    ]


def is_recomputing() -> bool:
    """Whether a checkpoint runs a layer again, in backward."""
    return torch._C._current_graph_task_id() >= 0


@contextmanager
def edit_by_hand(model: nn.Module, specs: list[Spec]) -> Iterator[None]:
    """Put hooks on that do the same as the edits."""
    edits, gradients = [EditByHand(spec) for spec in specs], Gradients()
    handles = gradients.handles
    for name in dict.fromkeys(spec.layer for spec in specs):
        handles += add_hooks(model.get_submodule(name), [each for each in edits if each.spec.layer == name], gradients)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not all(each.done and each.done >= {each.spec.call or min(each.done)} for each in edits):
        raise NotEditedError


# --- what could be edited, and what came of it


INDICES = {
    2: [..., at[:, 1], at[..., -1], at[0], at[1, ::2], at[:, [0, -1]]],
    1: [..., at[0]],
    3: [..., at[:, ::2], at[..., 0]],
    4: [..., at[:, ::2], at[..., 0]],
}


def choose_spec(
    make: Callable[[], Case], calls: list[EditableCall], which: int, kind: str, index: int, rows: bool, this_call: bool
) -> Spec | None:
    """Make an edit that fits one of the calls; None where any would be refused."""
    call = calls[which % len(calls)]
    if not call.tensors:
        return None
    place = index % len(call.tensors)
    path, shape = call.tensors[place]
    if shape is None:
        return None
    indices = INDICES.get(len(shape), [...]) if math.prod(shape) else [...]
    aim = indices[index % len(indices)]
    chosen = [shape[0] - 1] if rows and len(shape) == 2 and (aim is ... or aim in indices[1:3]) else None
    number = call.number if this_call else None
    spec = Spec(call.layer, kind, call.to, place, path, shape, aim, chosen, number)
    if kind.startswith("mean") and not has_samples(make(), spec):
        return None
    if not KINDS[kind].captures:
        return spec
    other = capture_other_run(make, spec)
    same = [each.tensors[place : place + 1] for each in calls if (each.layer, each.to) == (call.layer, call.to)]
    if other is None or [[(path, tuple(each.shape))] for each in other.kept] != same:
        return None
    return dataclasses.replace(spec, other=other)


def has_samples(case: Case, spec: Spec) -> bool:
    """Whether the first axis is that of samples: as long, and not that of the layers of an RNN's state."""
    model, args, kwargs = case
    batch = len((*args, *kwargs.values())[0])
    state = isinstance(model.get_submodule(spec.layer), nn.RNNBase) and spec.path[:1] == (1,)
    return spec.shape[:1] == (batch,) and not state


def capture_other_run(make: Callable[[], Case], spec: Spec) -> OtherRun | None:
    """Run on other numbers, capture a layer and take the same by hand; None if a call has nothing there."""
    taken: list[list[Tensor]] = []
    running: list[list[Tensor]] = []

    def take(tensors: list[Tensor], here: list[Tensor]) -> None:
        here += [each.detach().clone() for each in tensors[spec.place : spec.place + 1]]

    def take_gradient(grad: Tensor | None, here: list[Tensor]) -> None:
        here += [] if grad is None else [grad.detach().clone()]

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        taken.append([])
        running.append(taken[-1])
        if spec.to == "input":
            take(tensors_in((args, kwargs)), taken[-1])

    def after(module: nn.Module, args: Any, output: Any) -> None:
        here, tensors = running.pop(), tensors_in(output)
        if spec.to == "output":
            take(tensors, here)
        elif spec.to == "grad" and spec.place < len(tensors) and tensors[spec.place].requires_grad:
            tensors[spec.place].register_hook(lambda grad: take_gradient(grad, here))

    def run(model: nn.Module, args: Any, kwargs: Any) -> None:
        seed(2)
        args, kwargs = tensor_map(lambda t: t.detach().flip(-1).requires_grad_(t.requires_grad), (args, kwargs))
        with torch.set_grad_enabled(spec.to == "grad"):
            output = model(*args, **kwargs)
        run_backward(output)

    model, *given = make()
    layer = model.get_submodule(spec.layer)
    layer.register_forward_pre_hook(before, with_kwargs=True)
    layer.register_forward_hook(after)
    try:
        run(model, *given)
    except RuntimeError:  # autograd's, of what a tree at random writes to
        return None
    if not all(taken):
        return None
    model, *given = make()
    with capture(model, spec.layer, inputs=spec.to == "input", gradients=spec.to == "grad") as seen:
        run(model, *given)
    return OtherRun(seen, [tensors[-1] for tensors in taken])


def run_case(case: Case, around: Any) -> tuple[str, list[Tensor]]:
    """Run inside `around`, forward and backward: the error's type, and all there is afterwards."""
    model, args, kwargs = case
    seed(1)
    results: list[Any] = []
    error = ""
    try:
        with around:
            output = model(*args, **kwargs)
            results += tensors_in(output)
            run_backward(output)
    except (RuntimeError, IndexError) as raised:
        error = type(raised).__name__
        results = []
    if not error:
        # None and zeros are the same here: torch.where lets zeros through where an edit lets nothing through.
        leaves = [*model.parameters(), *(a for a in tensors_in((args, kwargs)) if a.is_leaf)]
        results += [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]
        results += [*model.buffers(), torch.get_rng_state()]
    return error, [t.detach() for t in results]


def check_edits(make: Callable[[], Case], specs: list[Spec], grad: bool = True, rounding: float = 0) -> str:
    """Compare edits with hooks written by hand, to the bit; the type of the error that both raise, if they do."""
    case, other = make(), make()
    e = edit(case[0])
    for spec in specs:
        spec.give(e)
    with torch.set_grad_enabled(grad):
        error, found = run_case(case, e)
        expected_error, expected = run_case(other, edit_by_hand(other[0], specs))
    assert error == expected_error, specs
    assert len(found) == len(expected)
    near: dict[str, Any] = {"rtol": rounding, "atol": rounding, "equal_nan": True}
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **near, msg=lambda text: f"{specs}: {text}")
    assert not len(census(case[0])) - len(census(other[0]))
    return error
