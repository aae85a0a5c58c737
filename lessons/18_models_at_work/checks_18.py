"""Exercises of chapter 18: features of many batches, a copy without hooks."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    ERROR_HIDDEN,
    BreakingLayer,
    add_foreign_hooks,
    count_hooks,
    format_count,
    hides_errors,
    record_registrations,
)
from hookscope_course.practice.exercise_kinds import find_left_hooks
from hookscope_course.practice.probe_models import Raises


def _is_of_nothing(error: Exception) -> bool:
    """Whether `torch.cat` had no tensor to lay below another."""
    return "non-empty list" in str(error)


def _left_after_error(model: nn.Module, run: Callable[[], object]) -> Wrong | None:
    try:
        told = hides_errors(run)
    except (RuntimeError, ValueError) as error:
        if not _is_of_nothing(error):
            raise
        told = True
    if left := count_hooks(model):
        return Wrong(f"a layer raised an error, and {format_count(left)} still on the model; use `with` or `finally`")
    return Wrong(ERROR_HIDDEN) if told else None


# -- features of many batches -----------------------------------------------------------------------------------------


class _Counts(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 1


class _Net(nn.Module):
    """Has a way around its layers, so that they cannot be called one after the other."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(width, width + 1, dtype=dtype)
        self.second = nn.Linear(width + 1, width, dtype=dtype)
        self.after: nn.Module = _Counts()
        self.seen = list[int]()
        self.ended: dict[type[BaseException], BaseException] = {}  # what has ended passes, one of each kind

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        try:
            y: Tensor = self.second(self.first(x).tanh() + x.sum(1, keepdim=True))
        except BaseException as error:
            self.ended[type(error)] = error
            raise
        z: Tensor = self.after(x - y)
        return z


_Features = Callable[[nn.Module, nn.Module, list[Tensor]], object]


def check_q1(features: _Features) -> Wrong | None:
    ended: dict[type[BaseException], BaseException] = {}
    for width, name, dtype in ((3, "second", torch.float32), (5, "first", torch.float64), (4, "second", torch.float64)):
        model = _Net(width, dtype)
        if wrong := _wrong_features(features, model, name, width, dtype):
            return wrong
        ended |= model.ended
    broken = _Net(3, torch.float32)
    broken.first = BreakingLayer()
    if wrong := _left_after_error(broken, lambda: features(broken, broken.second, [torch.randn(2, 3)])):
        return wrong
    sound = _Net(3, torch.float32)
    try:
        features(sound, sound.second, [torch.randn(2, 3), torch.randn(2, 5)])  # the second does not fit
    except RuntimeError as error:
        if "shape" not in str(error):
            return Wrong(f"one batch does not fit the model, and you raised {error!r}; let torch's error through")
        return next(filter(None, (_caught_too(features, error) for error in ended.values())), None)
    return Wrong("one batch does not fit the model, and you caught torch's error; you should catch only your own")


def _renew(error: BaseException) -> BaseException:
    """Make another error of the same kind."""
    try:
        return type(error)("this layer breaks")
    except TypeError:  # a kind that takes more, as UnicodeDecodeError does
        return copy.copy(error)


def _caught_too(features: _Features, ended: BaseException) -> Wrong | None:
    """Tell of an answer that catches what others may raise, too: an error of Python's or torch's, not its own."""
    kind = type(ended)
    if kind.__module__.partition(".")[0] not in sys.stdlib_module_names | {"torch"}:
        return None
    model = _Net(3, torch.float32)
    model.first = Raises(_renew(ended))
    try:
        features(model, model.second, [torch.randn(2, 3)])
    except BaseException as error:  # `torch.cat` of nothing raises, too
        if error is model.first.error:
            return None
    return Wrong(
        f"a layer raised {kind.__name__}, and you caught it as if it were your own; define a class for your exception "
        "and catch only this class"
    )


def _wrong_features(features: _Features, model: _Net, name: str, width: int, dtype: torch.dtype) -> Wrong | None:
    layer: Any = model.get_submodule(name)
    batches = [torch.randn(rows, width, dtype=dtype) for rows in (4, 2, 3)]
    add_foreign_hooks(model)
    try:
        with record_registrations() as registered:
            result = features(model, layer, batches)
    except (RuntimeError, ValueError, IndexError) as error:
        if _is_of_nothing(error):
            return Wrong(
                "you did not store any output; store it in the hook. `capture(stop=True)` exits its `with` block at "
                "the first stop, so open a new one for each batch"
            )
        if isinstance(error, RuntimeError):
            return Wrong(
                "your function raised an error on batches of 4, 2 and 3 rows. `torch.cat` can join their outputs, but "
                f"`torch.stack` cannot. torch says: {error}"
            )
        return Wrong(f"your function raised {error!r}")
    calls = [*model.seen]
    if left := find_left_hooks(model):
        return left
    if model.after.calls:
        return Wrong(f"you let the pass go on after `layer`; later layers should not run (calls: {model.after.calls})")
    if not isinstance(result, Tensor):
        return Wrong(f"you returned {result!r}; it should be one tensor")
    if result.requires_grad:
        return Wrong("your tensor still has a graph; it should be detached")
    with torch.no_grad():
        given = [model.first(batch).tanh() + batch.sum(1, keepdim=True) for batch in batches]
        each = [model.second(x) for x in given] if name == "second" else [model.first(batch) for batch in batches]
    right = torch.cat(each)
    if result.shape == right.shape and torch.allclose(result, right):
        if calls != [4, 2, 3]:
            return Wrong(f"you called the model with batches of {calls} samples; they should have 4, 2 and 3")
        no_hook = Wrong("your tensor is right, but you did not register a forward hook; use one")
        return None if "forward" in registered else no_hook
    if result.shape == each[0].shape and torch.allclose(result, each[0]):
        return Wrong("you returned only the first batch, as the exception ended your loop; catch it inside the loop")
    if result.shape == each[-1].shape and torch.allclose(result, each[-1]):
        return Wrong("you returned only the last batch; it should be all of them")
    return Wrong(
        f"your tensor has the shape {tuple(result.shape)}; it should be {tuple(right.shape)}, for all batches"
        if result.shape != right.shape
        else "your tensor has values that `layer` did not return; they should be the outputs of `layer`"
    )


# -- a copy without hooks ---------------------------------------------------------------------------------------------


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(bare_copy: Callable[[nn.Module], object]) -> Wrong | None:
    for width, dtype in ((3, torch.float32), (5, torch.float64)):
        if wrong := _wrong_copy(bare_copy, width, dtype):
            return wrong
    return None


def _ties(model: nn.Module) -> list[int]:
    """Identify each parameter under every name it has."""
    first: dict[int, int] = {}
    return [first.setdefault(id(each), len(first)) for _, each in model.named_parameters(remove_duplicate=False)]


def _wrong_copy(bare_copy: Callable[[nn.Module], object], width: int, dtype: torch.dtype) -> Wrong | None:
    inner = nn.Sequential(nn.Linear(width, 4), nn.Tanh())
    model = nn.Sequential(inner, nn.Linear(4, 4), nn.Linear(4, 4)).to(dtype)
    model[2].weight = model[1].weight
    fired: list[str] = []
    handles = []
    for part in (model, inner, inner[0], model[1]):
        handles.append(part.register_forward_hook(lambda module, args, output: fired.append("forward")))
        part.register_forward_pre_hook(lambda module, args: fired.append("forward pre"))
        part.register_full_backward_hook(lambda module, *grads: fired.append("full backward"))
        part.register_full_backward_pre_hook(lambda module, grads: fired.append("full backward pre"))
    inner[0].register_state_dict_post_hook(lambda module, *_: fired.append("state_dict"))  # type: ignore[no-untyped-call]
    model[1].register_load_state_dict_pre_hook(lambda module, *_: fired.append("load_state_dict pre"))  # type: ignore[no-untyped-call]
    inner.eval()
    model[1].bias.requires_grad_(False)
    before, x = count_hooks(model), torch.randn(3, width, dtype=dtype, requires_grad=True)
    with nn.modules.module.register_module_forward_hook(lambda module, args, output: None) as everywhere:
        twin = bare_copy(model)
        if everywhere.id not in nn.modules.module._global_forward_hooks:
            return Wrong("you also removed a global hook, which torch calls for every module; it should stay")
    if not isinstance(twin, nn.Module):
        return Wrong(f"you returned {twin!r}; it should be the copy")
    if twin is model:
        return Wrong("you returned the model itself; it should be a copy")
    if (now := count_hooks(model)) != before:
        return Wrong(f"the original had {before} hooks and now has {now}; it should keep its own")
    if left := count_hooks(twin):
        return Wrong(f"{format_count(left)} on your copy; remove every kind of hook from every module in it")
    if any(one is other for one in model.modules() for other in twin.modules()):
        return Wrong("your copy shares a module with the model; it should be a deep copy")
    places = {parameter.data_ptr() for parameter in model.parameters()}
    if any(parameter.data_ptr() in places for parameter in twin.parameters()):
        return Wrong("a parameter of your copy uses the same memory as one of the model; it should be a deep copy")
    if [type(one) for one in twin.modules()] != [type(one) for one in model.modules()]:
        return Wrong("your copy has different types of modules from the model; they should be the same")
    if [one.training for one in twin.modules()] != [one.training for one in model.modules()]:
        return Wrong("a module is in `train()` mode in one model but not in the other; your copy should keep the mode")
    if _ties(twin) != _ties(model):
        return Wrong(
            "two layers of the model share one weight, but in your copy each has its own; copy the whole model at once"
        )
    if [one.requires_grad for one in twin.parameters()] != [one.requires_grad for one in model.parameters()]:
        return Wrong("a parameter requires grad in one model but not in the other; your copy should keep that")
    fired.clear()
    copied = twin(x)
    copied.sum().backward()
    if fired:
        return Wrong(f"your copy called a {fired[0]} hook of the original; it should not call any")
    with torch.no_grad():
        if not torch.equal(copied, model(x)):
            return Wrong("your copy returns a different output from the model; it should be the same")
    for handle in handles:
        handle.remove()
    if count_hooks(model) != before - len(handles):
        return Wrong("the handles of the original no longer remove its hooks; you should not replace its dictionaries")
    return None
