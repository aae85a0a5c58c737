"""The lab of chapter 11: hooks that fire never, too often or for the wrong layer. The first wrong answer is the bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census
from lessons.checks import Exercise, Wrong
from lessons.checks.pitfalls import left_on, linear, numbers

__all__ = ["q5", "q6", "q7", "q8", "q9"]


def _check_answers(answers: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = linear(2.0)
    seen = answers(net, torch.tensor([[5.0]]))
    if seen == []:
        return Wrong("the net was run, and your list is empty: the hook was never called")
    if seen != [10.0]:
        return Wrong(f"the net returned 10 once; your list is {numbers(seen)}")
    return left_on(net)


q5 = Exercise(
    "11.5",
    question="The symptom: `answers` returns an empty list, though the net is run. Mend it.",
    difficulty="easy",
    minutes=2,
    check=_check_answers,
    why="Hooks run around `forward`, in the call of the module: `net(x)`, never `net.forward(x)`.",
    hints=(
        "The hook is on the net; `hookscope.census` would say so. So was the net *called*?",
        "Chapter 01, section 1.",
    ),
    solution="""
def answers(net, x):
    seen = []
    with net.register_forward_hook(lambda m, args, output: seen.append(output.item())):
        net(x)
    return seen

q5.check(answers)
""",
    wrong={
        """
def answers(net, x):
    seen = []
    with net.register_forward_hook(lambda m, args, output: seen.append(output.item())):
        net.forward(x)
    return seen

q5.check(answers)
""": "your list is empty: the hook was never called",
        """
def answers(net, x):
    seen = []
    with net.register_forward_hook(lambda m, args, output: seen.append(output.item())):
        seen.append(net(x).item())
    return seen

q5.check(answers)
""": "your list is [10, 10]",
        """
def answers(net, x):
    seen = []
    net.register_forward_hook(lambda m, args, output: seen.append(output.item()))
    net(x)
    return seen

q5.check(answers)
""": "a hook is still on the model",
    },
)


def _check_steps(net_class: Callable[[], nn.Module], watch: Callable[[nn.Module, Any], Any]) -> Wrong | None:
    torch.manual_seed(0)
    net, called = net_class(), list[str]()

    def note(module: nn.Module, args: object, output: object) -> None:
        called.append(type(module).__name__)

    x = torch.tensor([[-1.0, 2.0]])
    before = net(x)
    watch(net, note)
    after = net(x)
    if not torch.equal(before, after) or after.shape != (1, 2) or not (after >= 0).all():
        return Wrong("the net should still do Linear, ReLU, Linear, ReLU, with or without the hook")
    if called != ["Linear", "ReLU"] * 2:
        said = ", ".join(called) or "nothing at all"
        return Wrong(f"the net did Linear, ReLU, Linear, ReLU, and the hook was told of {said}")
    return None


q6 = Exercise(
    "11.6",
    question="The symptom: this net does Linear, ReLU, Linear, ReLU, and the hook is told of nothing. It should be "
    "told of all four. Mend the net and `watch`.",
    difficulty="medium",
    minutes=4,
    check=_check_steps,
    why="Only a module that is called runs hooks: not a function of `F`, not a weight that you use, not the list "
    "around the modules.",
    hints=(
        "Run the net in `with hookscope.capture(net, '*') as seen:`. Which are `seen.uncalled`, and why?",
        "In `forward`, call `step(x)` and `self.relu(…)`. In `watch`, take what is in the `ModuleList`.",
    ),
    solution="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.relu = nn.ReLU()

    def forward(self, x):
        for step in self.steps:
            x = self.relu(step(x))
        return x

def watch(net, hook):
    for step in net.steps:
        step.register_forward_hook(hook)
    net.relu.register_forward_hook(hook)

q6.check(Net, watch)
""",
    wrong={
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.relu = nn.ReLU()

    def forward(self, x):
        for step in self.steps:
            x = F.relu(F.linear(x, step.weight, step.bias))
        return x

def watch(net, hook):
    net.steps.register_forward_hook(hook)
    net.relu.register_forward_hook(hook)

q6.check(Net, watch)
""": "the hook was told of nothing at all",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.relu = nn.ReLU()

    def forward(self, x):
        for step in self.steps:
            x = self.relu(step(x))
        return x

def watch(net, hook):
    net.steps.register_forward_hook(hook)
    net.relu.register_forward_hook(hook)

q6.check(Net, watch)
""": "the hook was told of ReLU, ReLU",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.relu = nn.ReLU()

    def forward(self, x):
        for step in self.steps:
            x = F.relu(step(x))
        return x

def watch(net, hook):
    for step in net.steps:
        step.register_forward_hook(hook)
    net.relu.register_forward_hook(hook)

q6.check(Net, watch)
""": "the hook was told of Linear, Linear",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.relu = nn.ReLU()

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x

def watch(net, hook):
    for step in net.steps:
        step.register_forward_hook(hook)

q6.check(Net, watch)
""": "should still do Linear, ReLU, Linear, ReLU",
    },
)


def _check_count(count_calls: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = linear(2.0)
    counted = [count_calls(net, torch.ones(1, 1)) for _ in range(3)]
    if counted != [1, 1, 1]:
        return Wrong(f"the cell was run three times, with one call of the net each, and counted {numbers(counted)}")
    found = len(census(net, include_global=False))
    return Wrong(f"it counts 1, but after three runs {found} hooks are on the net") if found > 1 else None


q7 = Exercise(
    "11.7",
    question="In a notebook you run a cell again. Here the cell is a function, and the net is called once in it. The "
    "symptom: the first run counts 1, the next one 2, the next one 3. Mend it.",
    difficulty="easy",
    minutes=2,
    check=_check_count,
    why="Each run hung up one more hook; a hook that comes off at the end of its block cannot pile up.",
    hints=(
        "Ask `hookscope.census(net)` after two runs.",
        "Take the hook off where you hung it up: `with net.register_forward_hook(count): …`",
    ),
    solution="""
def count_calls(net, x):
    net.calls = 0

    def count(module, args, output):
        net.calls += 1

    with net.register_forward_hook(count):
        net(x)
    return net.calls

q7.check(count_calls)
""",
    wrong={
        """
def count_calls(net, x):
    net.calls = 0

    def count(module, args, output):
        net.calls += 1

    net.register_forward_hook(count)
    net(x)
    return net.calls

q7.check(count_calls)
""": "with one call of the net each, and counted [1, 2, 3]",
        """
def count_calls(net, x):
    calls = []
    net.register_forward_hook(lambda module, args, output: calls.append(output))
    net(x)
    return len(calls)

q7.check(count_calls)
""": "after three runs 3 hooks are on the net",
        """
def count_calls(net, x):
    net.calls = 0

    def count(module, args, output):
        net.calls = 1

    net.register_forward_hook(count)
    net(x)
    return net.calls

q7.check(count_calls)
""": "after three runs 3 hooks are on the net",
    },
)


def _check_noted(net_class: Callable[[], nn.Module]) -> Wrong | None:
    net: Any = net_class()
    nn.init.constant_(net.layer.weight, 2.0)
    for value in (1.0, 2.0, 3.0):
        net(torch.tensor([[value]]))
    if net.seen != [2.0, 4.0, 6.0]:
        return Wrong(f"three calls gave 2, 4 and 6, once each; the net noted {numbers(net.seen)}")
    return None


q8 = Exercise(
    "11.8",
    question="This net notes what its layer returns. The symptom: in three calls the layer returns 2, 4 and 6, and the "
    "net notes six numbers. Mend it.",
    difficulty="easy",
    minutes=2,
    check=_check_noted,
    why="What stands in `forward` happens at every call; a hook belongs in `__init__`.",
    hints=("Ask `hookscope.census(net)` after two calls: how many hooks, and from which line?", "Register once."),
    solution="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1, bias=False), []
        self.layer.register_forward_hook(self.note)

    def note(self, module, args, output):
        self.seen.append(output.item())

    def forward(self, x):
        return self.layer(x)

q8.check(Net)
""",
    wrong={
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1, bias=False), []

    def note(self, module, args, output):
        self.seen.append(output.item())

    def forward(self, x):
        self.layer.register_forward_hook(self.note)
        return self.layer(x)

q8.check(Net)
""": "the net noted [2, 4, 4, 6, 6, 6]",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1, bias=False), []

    def note(self, module, args, output):
        self.seen.append(output.item())

    def forward(self, x):
        output = self.layer(x)
        self.layer.register_forward_hook(self.note)
        return output

q8.check(Net)
""": "the net noted [4, 6, 6]",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1, bias=False), []

    def note(self, module, args, output):
        self.seen = [output.item()]

    def forward(self, x):
        self.layer.register_forward_hook(self.note)
        return self.layer(x)

q8.check(Net)
""": "the net noted [6]",
    },
)


def _check_names(watch: Callable[[nn.Module, dict[str, Any]], Any]) -> Wrong | None:
    net, seen = nn.Sequential(linear(2.0), linear(3.0), linear(4.0)), dict[str, Any]()
    watch(net, seen)
    net(torch.ones(1, 1))
    if seen != {"0": 2.0, "1": 6.0, "2": 24.0}:
        return Wrong(f"layers 0, 1 and 2 returned 2, 6 and 24; `seen` is {numbers(seen)}")
    return None


q9 = Exercise(
    "11.9",
    question="The symptom: three layers are watched, and `seen` has one entry, under the last name. Mend it.",
    difficulty="easy",
    minutes=3,
    check=_check_names,
    why="A function looks up `name` when it is called; by then the loop is over. `partial` hands over the name of now.",
    hints=(
        "When does the hook read `name`: where it is written, or where it is called?",
        "Give it the name as an argument: `functools.partial(keep, name)` is a hook that starts with it.",
    ),
    solution="""
def watch(net, seen):
    def keep(name, module, args, output):
        seen[name] = output.item()

    for name, layer in net.named_children():
        layer.register_forward_hook(functools.partial(keep, name))

q9.check(watch)
""",
    setup="import functools\n",
    wrong={
        """
def watch(net, seen):
    for name, layer in net.named_children():
        def keep(module, args, output):
            seen[name] = output.item()

        layer.register_forward_hook(keep)

q9.check(watch)
""": "`seen` is {2: 24}",
        """
def watch(net, seen):
    for name, layer in net.named_children():
        def keep(module, args, output, name):
            seen[name] = output.item()

        layer.register_forward_hook(keep)

q9.check(watch)
""": "missing 1 required positional argument: 'name'",
        """
def watch(net, seen):
    for name, layer in net.named_children():
        def keep(module, args, output):
            seen[module] = output.item()

        layer.register_forward_hook(keep)

q9.check(watch)
""": "`seen` is {Linear(",
    },
)
