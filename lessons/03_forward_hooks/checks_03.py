"""Exercises of chapter 03: change an output and leave the old one alone, keep without returning, tuples and dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope import census
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


class _Returns(nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _numbers(tensor: torch.Tensor) -> str:
    return str([round(value, 2) if value % 1 else int(value) for value in tensor.detach().flatten().tolist()])


def _check_at_most(at_most: Callable[[float], Any]) -> Wrong | None:
    for limit in (5, 4):
        hook = at_most(limit)
        if not callable(hook):
            return Wrong(f"`at_most({limit})` returned {hook!r}; it should return the hook function")
        double, x = _Returns(lambda x: 2 * x), torch.tensor([1.0, 3.0])
        kept: list[torch.Tensor] = []
        double.register_forward_hook(lambda module, args, output: kept.append(output))  # noqa: B023
        double.register_forward_hook(hook)
        answer, expected = double(x), torch.tensor([2.0, float(limit)])
        if not torch.equal(kept[0], 2 * x):
            return Wrong(
                "you changed the output in place: a hook before yours had kept [2, 6] "
                f"and now holds {_numbers(kept[0])}"
            )
        if answer is kept[0]:
            return Wrong("your hook did not return a new output, so it stayed [2, 6]")
        if not isinstance(answer, torch.Tensor):
            return Wrong(f"with your hook the call returns {answer!r}, not a tensor")
        if answer.shape != expected.shape or not torch.equal(answer, expected):
            return Wrong(f"with `at_most({limit})` [2, 6] came out as {_numbers(answer)}, not as [2, {limit}]")
    return None


q1 = Exercise(
    "03.1",
    question="Write `at_most(limit)`. It returns a forward hook. With the hook on, the module returns no number above "
    "`limit`: with `at_most(5)`, [2, 6] comes out as [2, 5]. Whoever kept the old output must still find [2, 6] in it.",
    difficulty="easy",
    minutes=4,
    check=_check_at_most,
    why="The hook returned a new tensor, and that took the place of the output; the old one is as it was.",
    hints=(
        "A function in a function, as `keep_as` in chapter 00: `at_most` defines the hook and returns it.",
        "`output.clamp(max=limit)` is a new tensor. `output.clamp_(max=limit)` writes into the old one.",
        "The hook itself has to return the new tensor.",
    ),
    solution="""
def at_most(limit):
    def hook(module, args, output):
        return output.clamp(max=limit)

    return hook

q1.check(at_most)
""",
    wrong={
        """
def at_most(limit):
    def hook(module, args, output):
        output.clamp(max=limit)

    return hook

q1.check(at_most)
""": "did not return a new output, so it stayed [2, 6]",
        """
def at_most(limit):
    def hook(module, args, output):
        output.clamp_(max=limit)

    return hook

q1.check(at_most)
""": "a hook before yours had kept [2, 6] and now holds [2, 5]",
        """
def at_most(limit):
    def hook(module, args, output):
        return output.clamp(min=limit)

    return hook

q1.check(at_most)
""": "with `at_most(5)` [2, 6] came out as [5, 6], not as [2, 5]",
        """
def at_most(limit):
    def hook(module, args, output):
        return output.clamp(max=5)

    return hook

q1.check(at_most)
""": "with `at_most(4)` [2, 6] came out as [2, 5], not as [2, 4]",
        """
def at_most(limit):
    def hook(module, args, output):
        return args[0].clamp(max=limit)

    return hook

q1.check(at_most)
""": "[2, 6] came out as [1, 3], not as [2, 5]",
        """
def at_most(limit):
    def hook(module, args, output):
        return output.clamp(max=limit)

q1.check(at_most)
""": "`at_most(5)` returned None; it should return the hook function",
        """
def at_most(limit):
    def hook(module, args, output):
        return [min(value, limit) for value in output.tolist()]

    return hook

q1.check(at_most)
""": "with your hook the call returns [2.0, 5], not a tensor",
        """
def at_most(module, args, output):
    return output.clamp(max=5)

q1.check(at_most)
""": "missing 2 required positional arguments",
    },
)


def _check_keep_all(keep_all: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    twice = nn.Linear(1, 1, bias=False)
    nn.init.constant_(twice.weight, 2.0)
    layers = {"twice": twice, "plus_one": _Returns(lambda x: x + 1), "tenfold": _Returns(lambda x: 10 * x)}
    model, x = nn.Sequential(OrderedDict(layers)), torch.tensor([[3.0]])
    expected = {"twice": 6.0, "plus_one": 7.0, "tenfold": 70.0}
    results: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, args, output: results.append(output))
    kept = keep_all(model, x)
    if not results:
        return Wrong("your function never called `model(x)`")
    if not isinstance(kept, dict):
        return Wrong(f"your function returned {kept!r}; it should return the dictionary `kept`")
    if list(kept) == ["tenfold"]:
        return Wrong(
            "`kept` has one name only, 'tenfold', the last one: your hooks look the name up when they run, "
            "and that is after the loop"
        )
    if set(kept) != set(expected):
        return Wrong(f"`kept` has the names {', '.join(map(str, kept))}; it should have {', '.join(expected)}")
    for name, value in expected.items():
        if not isinstance(kept[name], torch.Tensor):
            return Wrong(f"under {name!r} you kept {kept[name]!r}; keep a tensor")
        if kept[name].numel() != 1 or kept[name].item() != value:
            return Wrong(f"under {name!r} you kept {_numbers(kept[name])}, but the layer returned [{value:.0f}]")
    if not results[-1].requires_grad:
        return Wrong(
            "what you kept is right, but the model's output has lost its gradient: your hook returned the detached "
            "copy, and that took the place of the output"
        )
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("what you kept still holds the graph; keep `output.detach().clone()`")
    if len(census(model, include_global=False)) > 1:
        return Wrong("your hooks are still on the model; remove every handle")
    return None


q2 = Exercise(
    "03.2",
    question="A colleague wants to keep what every child of a model returns. But `kept` has one name only, and with "
    "the hooks on, the model returns another number. There are two defects. Find both and mend them."
    """
```
def keep_all(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        hook = lambda m, args, output: kept.setdefault(name, output.detach().clone())
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept
```""",
    difficulty="medium",
    minutes=6,
    check=_check_keep_all,
    why="Each hook got its own name when it was made, and it returns None, so it only watches.",
    hints=(
        "One defect is in section 5, the other in section 2.",
        "The name: a lambda looks it up when it runs. `partial(keep, name)` fills it in at once.",
        "The model: what does `setdefault` give back? Write `keep` with `def`, four parameters, and no `return`.",
    ),
    solution="""
def keep_all(model, x):
    kept, handles = {}, []

    def keep(name, module, args, output):
        kept[name] = output.detach().clone()

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""",
    wrong={
        """
def keep_all(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        hook = lambda m, args, output: kept.setdefault(name, output.detach().clone())
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "`kept` has one name only, 'tenfold'",
        """
def keep_all(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def keep(module, args, output):
            kept[name] = output.detach().clone()

        handles.append(layer.register_forward_hook(keep))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "your hooks look the name up when they run",
        """
def keep_all(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        hook = lambda m, args, output, name=name: kept.setdefault(name, output.detach().clone())
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "the model's output has lost its gradient: your hook returned the detached copy",
        """
def keep_all(model, x):
    kept = {}

    def keep(name, module, args, output):
        kept[name] = output.detach().clone()

    for name, layer in model.named_children():
        layer.register_forward_hook(partial(keep, name))
    model(x)
    return kept

q2.check(keep_all)
""": "your hooks are still on the model",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(name, module, args, output):
        kept[name] = args[0].detach().clone()

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "under 'twice' you kept [3], but the layer returned [6]",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(module, name, args, output):
        kept[name] = output.detach().clone()

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name=name)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "got multiple values for argument 'name'",
        """
def keep_all(model, x):
    kept = {}
    for name, layer in model.named_children():
        x = kept[name] = layer(x)
    return kept

q2.check(keep_all)
""": "never called `model(x)`",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(name, module, args, output):
        kept[name] = output.detach().clone()

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name)))
    model(x)
    for handle in handles:
        handle.remove()

q2.check(keep_all)
""": "your function returned None; it should return the dictionary `kept`",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(module, args, output):
        kept[type(module).__name__] = output.detach().clone()

    for layer in model.children():
        handles.append(layer.register_forward_hook(keep))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "`kept` has the names Linear, _Returns; it should have twice, plus_one, tenfold",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(name, module, args, output):
        kept[name] = output

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "what you kept still holds the graph",
        """
def keep_all(model, x):
    kept, handles = {}, []

    def keep(name, module, args, output):
        kept[name] = output.item()

    for name, layer in model.named_children():
        handles.append(layer.register_forward_hook(partial(keep, name)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_all)
""": "under 'twice' you kept 6.0; keep a tensor",
    },
    setup="from functools import partial\n",
)


def _check_halve(halve: Callable[..., object]) -> Wrong | None:
    cases: dict[str, Callable[[torch.Tensor], Any]] = {
        "tensor": lambda x: 2 * x,
        "tuple": lambda x: (2 * x, 4 * x),
        "dict": lambda x: {"low": 2 * x, "high": 4 * x},
    }
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for what, function in cases.items():
        module = _Returns(function)
        module.register_forward_hook(halve)
        answer, raw = module(x), function(x)
        if type(answer) is not type(raw):
            loop = isinstance(raw, torch.Tensor) and isinstance(answer, tuple | list)
            why = "; a loop over a tensor walks along its first axis" if loop else ""
            got = type(answer).__name__
            return Wrong(f"the module returned a {what}; with your hook the call returns a {got}{why}")
        if isinstance(raw, dict) and set(answer) != set(raw):
            return Wrong(f"the dict had the names {', '.join(raw)}; now it has {', '.join(map(str, answer))}")
        if isinstance(raw, tuple) and len(answer) != len(raw):
            return Wrong(f"the {what} had {len(raw)} tensors; now it has {len(answer)}")
        names = list(raw) if isinstance(raw, dict) else range(len(raw))
        pairs = [(answer, raw)] if isinstance(raw, torch.Tensor) else [(answer[name], raw[name]) for name in names]
        for ours, theirs in pairs:
            if not isinstance(ours, torch.Tensor):
                return Wrong(f"in the {what} there is now a {type(ours).__name__} where a tensor was")
            if ours.shape != theirs.shape:
                return Wrong(f"a tensor of shape {tuple(theirs.shape)} came out with shape {tuple(ours.shape)}")
            if torch.equal(ours, theirs):
                where = "" if isinstance(raw, torch.Tensor) else f" in the {what}"
                return Wrong(f"with your hook on, {_numbers(theirs)}{where} stayed as it was")
            if not torch.equal(ours, theirs / 2):
                return Wrong(f"{_numbers(theirs)} came out as {_numbers(ours)}, not as {_numbers(theirs / 2)}")
    return None


q3 = Exercise(
    "03.3",
    question="Write `halve`, a forward hook that halves every tensor in the output. The module may return a tensor, a "
    "tuple of tensors, or a dict of tensors. What comes out has the same form.",
    difficulty="medium",
    minutes=5,
    check=_check_halve,
    why="`output` is whatever `forward` returned, so a hook for any module has to look what it is first.",
    hints=(
        "`isinstance(output, torch.Tensor)` first, then `isinstance(output, dict)`; what is left is a tuple.",
        "A tuple: `tuple(part / 2 for part in output)`. A dict: the same with `output.items()`.",
    ),
    solution="""
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    if isinstance(output, dict):
        return {name: part / 2 for name, part in output.items()}
    return tuple(part / 2 for part in output)

q3.check(halve)
""",
    wrong={
        """
def halve(module, args, output):
    return output / 2

q3.check(halve)
""": "unsupported operand type(s) for /: 'tuple' and 'int'",
        """
def halve(module, args, output):
    return tuple(part / 2 for part in output)

q3.check(halve)
""": "with your hook the call returns a tuple; a loop over a tensor walks along its first axis",
        """
def halve(module, args, output):
    return output[0] / 2

q3.check(halve)
""": "a tensor of shape (2, 2) came out with shape (2,)",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    if isinstance(output, dict):
        output = output.values()
    return tuple(part / 2 for part in output)

q3.check(halve)
""": "the module returned a dict; with your hook the call returns a tuple",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    if isinstance(output, tuple):
        return (output[0] / 2, *output[1:])

q3.check(halve)
""": "with your hook on, [4, 8, 12, 16] in the tuple stayed as it was",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        output / 2

q3.check(halve)
""": "with your hook on, [2, 4, 6, 8] stayed as it was",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return args[0] / 2

q3.check(halve)
""": "[2, 4, 6, 8] came out as [0.5, 1, 1.5, 2], not as [1, 2, 3, 4]",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    return (output[0] / 2,)

q3.check(halve)
""": "the tuple had 2 tensors; now it has 1",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    return tuple((part / 2).tolist() for part in output)

q3.check(halve)
""": "in the tuple there is now a list where a tensor was",
        """
def halve(module, args, output):
    if isinstance(output, torch.Tensor):
        return output / 2
    if isinstance(output, dict):
        return {place: part / 2 for place, part in enumerate(output.values())}
    return tuple(part / 2 for part in output)

q3.check(halve)
""": "the dict had the names low, high; now it has 0, 1",
    },
)
