"""The facts of torch that the course relies on, each a function that asks the installed torch; print all as JSON.

    python facts.py

The time machine, the fact check and the cheat sheet say what these functions return, and look them up by name. A
docstring is the question. What the function returns is the answer, short enough for a chart, and the same in each run.
A function that fails answers with its error, and the others go on. The file runs on every torch from 1.0 on, so it is
plain Python 3.6, needs nothing but torch, and is one long file: alone it is handed to the Python of each release.
"""

import contextlib
import copy
import gc
import inspect
import json
import re
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple, Union

import torch
from torch import nn

Answer = Union[str, List[str]]
MISSING = "missing"


class Fact(NamedTuple):
    """One question to torch: the function that asks it, a label for charts, and the chapters that teach the answer."""

    ask: Callable[[], Answer]
    label: str
    chapters: Tuple[int, ...]

    @property
    def question(self) -> str:
        """The question in plain words."""
        return " ".join((self.ask.__doc__ or "").split())


FACTS: Dict[str, Fact] = {}


def fact(label: str, *chapters: int) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Make a function one of `FACTS`, under its own name."""

    def add(ask: Callable[[], Answer]) -> Callable[[], Answer]:
        FACTS[ask.__name__] = Fact(ask, label, chapters)
        return ask

    return add


class NotThereError(Exception):
    """The torch that runs has no such function or argument."""


def run() -> Dict[str, Answer]:
    """Answer every question: `{name: answer}`. Leaves random numbers and warnings as they were."""
    answers: Dict[str, Answer] = {}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for name, one in FACTS.items():
            try:
                answers[name] = one.ask()
            except NotThereError:
                answers[name] = MISSING
            except Exception as error:  # the answer of this torch, or news: either way it belongs in the record
                answers[name] = format_error(error)
    return answers


def format_error(error: Exception) -> str:
    """Return type and first sentence of an error, without addresses."""
    text = re.sub(r"<function \S+(?: at 0x[0-9a-f]+)?>", "<function>", str(error)).strip().split("\n")[0]
    return type(error).__name__ + ": " + re.split(r"\.(?=\s|$)", text)[0][:120]


def describe_outcome(run: Callable[[], str]) -> str:
    """Return what a function returns, or its error."""
    try:
        return run()
    except (RuntimeError, TypeError) as error:
        return format_error(error)


# -- what the facts share ----------------------------------------------------------------------------------------


def leaf(*values: float) -> Any:
    """Return a tensor that requires grad."""
    return torch.tensor(values, requires_grad=True)


def double() -> nn.Linear:
    """Return a layer that computes 2 · x."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    return layer


class Scale(nn.Module):
    """Multiply by a factor, which must not be 0."""

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        """Return factor · x."""
        if factor == 0:
            raise ValueError("factor is 0")
        return x * factor


class SumOfThree(nn.Module):
    """Three arguments, two additions."""

    def forward(self, x: Any, y: Any, z: Any) -> Any:
        """Return x + y + z."""
        return x + y + z


class WeightedProduct(nn.Module):
    """A product with W = 5."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0]))

    def forward(self, x1: Any, x2: Any) -> Any:
        """Return x1 · x2 · W."""
        return x1 * x2 * self.W


def require(owner: Any, name: str, argument: str = "") -> Any:
    """Return `owner.name`, or raise NotThereError when it, or its argument, does not exist."""
    if not hasattr(owner, name):
        raise NotThereError
    found = getattr(owner, name)
    if argument and argument not in inspect.signature(found).parameters:
        raise NotThereError
    return found


def number(value: Any) -> str:
    """Return a one-element tensor as text: "10"."""
    return "{:g}".format(value.item())


def shapes(grads: Any) -> str:
    """Return the shapes of a tuple of gradients: "[1, 5], None"."""
    return ", ".join("None" if grad is None else str(list(grad.shape)) for grad in grads)


def grad_input(register: str, module: nn.Module, *inputs: Any) -> str:
    """Return the shapes that a backward hook gets as grad_input."""
    got: List[str] = []
    require(module, register)(lambda module, grad_input, grad_output: got.append(shapes(grad_input)))
    module(*inputs).sum().backward()
    return " and again ".join(got) or "does not fire"


def legacy_grad_input(module: nn.Module, *inputs: Any) -> str:
    """Return the shapes that a legacy backward hook gets as grad_input."""
    return grad_input("register_backward_hook", module, *inputs)


def full_grad_input(module: nn.Module, *inputs: Any) -> str:
    """Return the shapes that a full backward hook gets as grad_input."""
    return grad_input("register_full_backward_hook", module, *inputs)


def list_warnings(run: Callable[[], Any]) -> str:
    """Return the categories of the warnings that come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return ", ".join(sorted({warning.category.__name__ for warning in caught})) or "none"


def last_step(output: Any) -> str:
    """Return the name of an output's node, and of the nodes before it: "AddBackward0 < SqueezeBackward0"."""
    node = output.grad_fn
    before = [type(other).__name__ for other, _ in node.next_functions if other is not None]
    return type(node).__name__ + " < " + ", ".join(before)


def hook_names(owner: Any) -> List[str]:
    """Return the public functions of `owner` that have to do with hooks or callbacks."""
    return sorted(name for name in dir(owner) if re.match(r"(?!_).*(hook|callback)", name))


# -- forward ------------------------------------------------------------------------------------------------------


@fact("forward hook returns a value", 3)
def forward_hook_returns() -> str:
    """A layer computes 6, and its forward hook returns 60: what does the caller get?"""
    layer = double()
    layer.register_forward_hook(lambda module, args, output: output * 10)
    return number(layer(torch.tensor([3.0])))


@fact("forward hook edits in place", 3)
def forward_hook_edits_in_place() -> str:
    """A layer computes 6, and its forward hook adds 5 to it in place: what does the caller get?"""
    layer = double()

    def add_five(module: Any, args: Any, output: Any) -> None:
        output.add_(5)

    layer.register_forward_hook(add_five)
    return number(layer(torch.tensor([3.0])))


@fact("three forward hooks return values", 3)
def forward_hooks_pass_on() -> List[str]:
    """A layer computes 6; its hooks return 7, 10 × what they get, and "text": what do they get, and what the caller?"""
    layer = double()
    got: List[str] = []

    def register(change: Callable[[Any], Any]) -> None:
        def hook(module: Any, args: Any, output: Any) -> Any:
            got.append(number(output))
            return change(output)

        layer.register_forward_hook(hook)

    register(lambda output: output + 1)
    register(lambda output: output * 10)
    register(lambda output: "text")
    got.append(layer(torch.tensor([3.0])))
    return got


@fact("what a forward hook gets", 1, 3)
def forward_hook_args() -> str:
    """A module adds its three arguments: what are the args of its forward hook, and is its output the caller's?"""
    module = SumOfThree()
    got: List[Any] = []
    module.register_forward_hook(lambda module, args, output: got.extend([type(args).__name__, len(args), output]))
    output = module(leaf(1.0), leaf(2.0), leaf(3.0))
    return "a {} of {}, {} output".format(got[0], got[1], "the same" if got[2] is output else "another")


@fact("forward hook under no_grad", 3, 9)
def forward_hook_no_grad() -> str:
    """A module of two additions is called under no_grad: how often does its forward hook fire?"""
    module = SumOfThree()
    fired: List[int] = []
    module.register_forward_hook(lambda module, args, output: fired.append(1))
    with torch.no_grad():
        module(leaf(1.0), leaf(2.0), leaf(3.0))
    return str(len(fired))


@fact("what else an in-place hook changes", 3)
def forward_hook_in_place_price() -> List[str]:
    """A forward hook adds 5 to its input or its output in place: what are output, input and the input's gradient?"""

    def run(module: nn.Module, end: str) -> str:
        x = 1 * leaf(3.0)
        x.retain_grad()
        module.register_forward_hook(
            lambda module, args, output: (args[0] if end == "input" else output).detach().add_(5) and None
        )
        output = module(x)
        return "{}, {}, ".format(number(output), number(x)) + describe_outcome(
            lambda: output.backward() or number(x.grad)
        )

    return [
        "the input of 2 · x: " + run(double(), "input"),
        "the output of a ReLU: " + run(nn.ReLU(), "output"),
        "the output of an Identity: " + run(nn.Sequential(), "output"),  # an empty one; torch 1.0 has no Identity
    ]


@fact("loop over the output", 3)
def loop_over_output() -> List[str]:
    """A forward hook loops over the output: how many turns?"""
    turns: List[int] = []

    class Pair(nn.Module):
        def forward(self, x: Any) -> Any:
            return x, x

    for module in (nn.Sequential(), Pair()):
        module.register_forward_hook(lambda module, args, output: turns.append(len(list(output))))
        module(torch.zeros(4, 2))
    return ["a tensor of four rows: {}".format(turns[0]), "a tuple of two tensors: {}".format(turns[1])]


@fact("bound method as a hook", 3)
def bound_method_hook() -> List[str]:
    """A bound method is a forward hook: who notes the call of a deep copy, and how long is its object kept?"""

    class OutputWatcher:
        def __init__(self) -> None:
            self.seen: List[str] = []

        def look(self, module: Any, args: Any, output: Any) -> None:
            self.seen.append(number(output))

    watcher, layer = OutputWatcher(), double()
    handle = layer.register_forward_hook(watcher.look)
    other = copy.deepcopy(layer)
    other(torch.tensor([3.0]))
    copied: Any = next(iter(other._forward_hooks.values()))
    noted = "the watcher notes {}, its copy {}".format(watcher.seen, copied.__self__.seen)
    alive = weakref.ref(watcher)
    del watcher
    gc.collect()
    kept = "kept" if alive() else "gone"
    handle.remove()
    gc.collect()
    return [noted, "{} with the hook, {} after remove()".format(kept, "kept" if alive() else "gone")]


@fact("where a hook is stored", 1)
def hook_stored_under_id() -> str:
    """Does module._forward_hooks hold a forward hook under the id of its handle?"""
    layer = double()
    hook = lambda module, args, output: None  # noqa: E731
    handle = layer.register_forward_hook(hook)
    return "yes" if list(layer._forward_hooks.items()) == [(handle.id, hook)] else "no"


@fact("hooks removed in time", 1)
def hooks_removed_in_time() -> str:
    """A forward hook is removed before a call, a full one after backward(): how often does each fire in the next?"""
    layer = double()
    fired: List[str] = []
    layer.register_forward_hook(lambda module, args, output: fired.append("forward")).remove()
    handle = require(layer, "register_full_backward_hook")(lambda module, gi, go: fired.append("full"))
    layer(leaf(3.0)).backward()
    once = fired.count("full")
    handle.remove()
    layer(leaf(3.0)).backward()
    return "{}, {}".format(fired.count("forward"), fired.count("full") - once)


@fact("pre-hook returns a value", 4)
def pre_hook_returns() -> str:
    """A layer doubles its input 3, and its forward pre-hook returns 30: what does the layer compute?"""
    layer = double()
    layer.register_forward_pre_hook(lambda module, args: args[0] * 10)
    return number(layer(torch.tensor([3.0])))


@fact("pre-hook returns a list", 4)
def pre_hook_returns_list() -> str:
    """A forward pre-hook returns a list of two tensors: how many arguments does forward get?"""
    got: List[int] = []

    class CountsArguments(nn.Module):
        def forward(self, *args: Any) -> Any:
            got.append(len(args))
            return torch.zeros(1)

    module = CountsArguments()
    module.register_forward_pre_hook(lambda module, args: [torch.zeros(1), torch.zeros(1)])
    module(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    return {3: "3, the list is ignored", 2: "2", 1: "1, the list itself"}[got[0]]


@fact("pre-hook returns a tuple", 4)
def pre_hook_returns_argument() -> str:
    """The only argument of a module is a tuple of three, and its pre-hook returns this tuple: what does forward get?"""
    got: List[int] = []

    class CountsParts(nn.Module):
        def forward(self, *args: Any) -> Any:
            got.append(len(args))

    module = CountsParts()
    module.register_forward_pre_hook(lambda module, args: args[0])
    module((1, 2, 3))
    return "{} arguments".format(got[0])


@fact("pre-hook with_kwargs=True", 4)
def pre_hook_with_kwargs() -> str:
    """module(x=3) returns x: what do the args of a pre-hook hold, and what comes out if it returns {"x": 30}?"""
    module = Scale()
    require(module, "register_forward_pre_hook", "with_kwargs")
    got: List[str] = []
    module.register_forward_pre_hook(lambda module, args: got.append(str(args)))
    module.register_forward_pre_hook(lambda module, args, kwargs: (args, {"x": 10 * kwargs["x"]}), with_kwargs=True)
    output = number(module(x=torch.tensor([3.0])))
    return "{}, {}".format(got[0], output)


@fact("forward called directly", 1)
def forward_called_directly() -> str:
    """How often does a forward hook fire when you call module.forward(x) in place of module(x)?"""
    layer = double()
    fired: List[int] = []
    layer.register_forward_hook(lambda module, args, output: fired.append(1))
    layer.forward(torch.tensor([3.0]))
    return str(len(fired))


@fact("forward called directly: other hooks", 1)
def forward_called_directly_inside() -> str:
    """outer.forward(x) is called, then backward: which hooks of outer, of its child and of the child's weight fire?"""
    child: Any = double()
    outer: Any = nn.Sequential(child)
    fired: List[str] = []
    outer.register_forward_hook(lambda module, args, output: fired.append("forward"))
    require(outer, "register_full_backward_hook")(lambda module, gi, go: fired.append("full backward"))
    child.register_forward_hook(lambda module, args, output: fired.append("child's forward"))
    child.weight.register_hook(lambda grad: fired.append("weight's"))
    outer.forward(leaf(3.0)).backward()
    return ", ".join(fired)


@fact("hook with too few parameters", 1)
def hook_without_parameters() -> str:
    """A forward hook has no parameters: when does that fail?"""
    layer = double()
    hook: Any = lambda: None  # noqa: E731
    layer.register_forward_hook(hook)
    try:
        layer(torch.tensor([3.0]))
    except TypeError:
        return "TypeError at the call"
    return "never"


@fact("order of three forward hooks", 2)
def forward_hook_order() -> str:
    """Three forward hooks are registered, 1, 2, 3: in which order do they run?"""
    layer = double()
    order: List[str] = []
    for name in "123":
        layer.register_forward_hook(lambda module, args, output, name=name: order.append(name))
    layer(torch.tensor([3.0]))
    return " ".join(order)


@fact("prepend=True", 2)
def forward_hook_prepend() -> str:
    """Forward hook 1 is registered, then hook 2 with prepend=True: in which order do they run?"""
    require(nn.Module, "register_forward_hook", "prepend")
    layer = double()
    order: List[str] = []
    layer.register_forward_hook(lambda module, args, output: order.append("1"))
    layer.register_forward_hook(lambda module, args, output: order.append("2"), prepend=True)
    layer(torch.tensor([3.0]))
    return " ".join(order)


@fact("with_kwargs=True", 1, 3)
def forward_hook_with_kwargs() -> str:
    """What does a forward hook see of module(x, factor=2) with with_kwargs=True?"""
    require(nn.Module, "register_forward_hook", "with_kwargs")
    module = Scale()
    got: List[str] = []
    hook = lambda module, args, kwargs, output: got.append("{} args, {}".format(len(args), kwargs))  # noqa: E731
    module.register_forward_hook(hook, with_kwargs=True)
    module(torch.tensor([3.0]), factor=2)
    return got[0]


@fact("always_call=True", 3)
def forward_hook_always_call() -> str:
    """forward raises: does a forward hook with always_call=True still fire?"""
    require(nn.Module, "register_forward_hook", "always_call")
    module = Scale()
    got: List[str] = []
    hook = lambda module, args, output: got.append("fires, output is {}".format(output))  # noqa: E731
    module.register_forward_hook(hook, always_call=True)
    with contextlib.suppress(ValueError):
        module(torch.tensor([3.0]), 0)
    return got[0] if got else "does not fire"


# -- tensors ------------------------------------------------------------------------------------------------------


@fact("retain_grad, then a hook × 10", 7)
def retain_grad_then_hook() -> str:
    """b.retain_grad(), then b gets a hook that returns 10 × its gradient 1: what is b.grad?"""
    b = 2 * leaf(1.0)
    b.retain_grad()
    b.register_hook(lambda grad: grad * 10)
    b.sum().backward()
    return number(b.grad)


@fact("a hook × 10, then retain_grad", 7)
def hook_then_retain_grad() -> str:
    """b gets a hook that returns 10 × its gradient 1, then b.retain_grad(): what is b.grad?"""
    b = 2 * leaf(1.0)
    b.register_hook(lambda grad: grad * 10)
    b.retain_grad()
    b.sum().backward()
    return number(b.grad)


@fact("an observing tensor hook", 7)
def tensor_hook_observes() -> str:
    """A tensor hook that only looks, on b with retain_grad: does it get what b.grad then holds?"""
    got: List[Any] = []
    b = 2 * leaf(1.0)
    b.retain_grad()
    b.register_hook(got.append)
    (3 * b).sum().backward()
    return "yes" if torch.equal(got[0], b.grad) else "no"


@fact("two tensor hooks, + 1 and × 10", 7)
def tensor_hook_order() -> str:
    """A tensor hook adds 1 to the gradient 1, a second one multiplies by 10: what arrives?"""
    a = leaf(1.0)
    a.register_hook(lambda grad: grad + 1)
    a.register_hook(lambda grad: grad * 10)
    a.sum().backward()
    return number(a.grad)


@fact("a tensor hook's place in the order", 7)
def tensor_hook_place() -> str:
    """Tensor hooks make 10 × of the gradient 5, then add 1: what does one get before, between and after them?"""
    got: List[str] = []
    b = 2 * leaf(1.0)
    look = lambda grad: got.append(number(grad))  # noqa: E731
    for hook in (look, lambda grad: grad * 10, look, lambda grad: grad + 1, look):
        b.register_hook(hook)
    (5 * b).sum().backward()
    return ", ".join(got)


@fact("tensor hook and an in-place operation", 7)
def tensor_hook_and_in_place() -> List[str]:
    """b becomes 10 · b in place, with the gradient 5: what do hooks get, on b and a view, from before and after?"""
    require(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.0 kills Python here
    found: List[str] = []
    for on, when in (("b", "before"), ("b", "after"), ("view", "before"), ("view", "after")):
        got: List[str] = []
        b = 2 * leaf(1.0)
        view = b[:1]
        for moment in ("before", "edit", "after"):
            if moment == "edit":
                b.mul_(10)
            elif moment == when:
                (b if on == "b" else view).register_hook(lambda grad, got=got: got.append(number(grad)))
        (5 * view).sum().backward()
        found.append("{}, {}: {}".format(on, when, ", ".join(got) or "nothing"))
    return found


@fact("tensor hook, two passes", 7)
def tensor_hook_two_passes() -> str:
    """Two passes give a leaf the gradient 3 each: what does its tensor hook get, and what does .grad hold?"""
    a = leaf(1.0)
    got: List[str] = []
    totals: List[str] = []
    a.register_hook(lambda grad: got.append(number(grad)))
    for _ in range(2):
        (3 * a).backward()
        totals.append(number(a.grad))
    return "the hook {}; .grad {}".format(", ".join(got), ", ".join(totals))


@fact("post-accumulate hook, two passes", 7)
def post_accumulate_two_passes() -> str:
    """Two passes give a leaf the gradient 3 each: what does a post-accumulate hook find in .grad?"""
    a = leaf(1.0)
    got: List[str] = []
    require(a, "register_post_accumulate_grad_hook")(lambda tensor: got.append(number(tensor.grad)))
    for _ in range(2):
        (3 * a).backward()
    return ", ".join(got)


@fact("what arrives at a tensor", 7)
def tensor_hook_gets() -> List[str]:
    """What does a tensor hook on b = 3 get, if b is used once, twice, and before a tensor whose hook returns 10 ×?"""

    def edited(b: Any) -> Any:
        c = 2 * b
        c.register_hook(lambda grad: grad * 10)
        return 5 * c

    ends = {"5 · b²": lambda b: 5 * b**2, "5 · b + 2 · b²": lambda b: 5 * b + 2 * b**2, "5 · 2 · b, edited": edited}
    found: List[str] = []
    for name, end in ends.items():
        got: List[str] = []
        b = 1 * leaf(3.0)
        b.register_hook(lambda grad, got=got: got.append(number(grad)))
        end(b).backward()
        found.append("{}: {}".format(name, " and again ".join(got)))
    return found


@fact("which gradients a tensor hook changes", 7)
def tensor_hook_reaches() -> str:
    """a → b → c, and a hook on b returns 10 × its gradient: how many times as large are the gradients of a and of c?"""
    a = leaf(1.0)
    b = 2 * a
    c = 3 * b
    c.retain_grad()
    b.register_hook(lambda grad: grad * 10)
    c.backward()
    return "a {}, c {}".format(number(a.grad / 6), number(c.grad))


@fact("tensor hook writes in place", 7)
def tensor_hook_edits_in_place() -> str:
    """a.grad would be 6; a tensor hook on b = 2 · a multiplies its gradient by 10 in place: what is a.grad?"""
    a = leaf(1.0)
    b = 2 * a
    b.register_hook(lambda grad: grad.mul_(10))
    (3 * b).sum().backward()
    return number(a.grad)


@fact("tensor hook under autograd.grad", 7)
def tensor_hook_autograd_grad() -> str:
    """torch.autograd.grad asks for the gradient 1 of b, whose hook returns 10 × it: what comes back?"""
    b = 2 * leaf(1.0)
    b.register_hook(lambda grad: grad * 10)
    return number(torch.autograd.grad(b.sum(), b)[0])


@fact("post-accumulate hook", 7, 12)
def post_accumulate_hook() -> str:
    """What does a hook of register_post_accumulate_grad_hook find in .grad, when the gradient is 1?"""
    a = leaf(1.0)
    got: List[str] = []
    require(a, "register_post_accumulate_grad_hook")(lambda tensor: got.append(number(tensor.grad)))
    a.sum().backward()
    return got[0]


@fact("hook on an AccumulateGrad node", 7)
def accumulate_grad_node_hook() -> str:
    """A hook sits on the AccumulateGrad node of a leaf: what does it find in .grad, and what does it get?"""
    a = leaf(1.0)
    got: List[str] = []
    node = a.expand_as(a).grad_fn.next_functions[0][0]
    node.register_hook(
        lambda grad_inputs, grad_outputs: got.append(
            "{}; {} in, {} out".format(
                a.grad if a.grad is None else number(a.grad), len(grad_inputs), len(grad_outputs)
            )
        )
    )
    a.sum().backward()
    return got[0] if got else "does not fire"


# -- modules, backward --------------------------------------------------------------------------------------------


@fact("full hook: grad_input", 8)
def full_hook_grad_input() -> str:
    """y = x1 · x2 · W with 2, 3, 5: what does a full backward hook get as grad_input?"""
    module = WeightedProduct()
    got: List[str] = []
    hook = lambda module, grad_input, grad_output: got.append(", ".join(map(number, grad_input)))  # noqa: E731
    require(module, "register_full_backward_hook")(hook)
    module(leaf(2.0), leaf(3.0)).backward()
    return got[0]


@fact("full hook: both ends", 8)
def full_hook_matches_grad() -> str:
    """y = x1 · x2 · W: are grad_input and grad_output x1.grad, x2.grad and y.grad, with retain_grad on y?"""
    module, x1, x2 = WeightedProduct(), leaf(2.0), leaf(3.0)
    got: List[Any] = []
    require(module, "register_full_backward_hook")(lambda module, gi, go: got.extend(gi + go))
    y = module(x1, x2)
    y.retain_grad()
    y.backward()
    return "yes" if len(got) == 3 and all(map(torch.equal, got, (x1.grad, x2.grad, y.grad))) else "no"


@fact("full hook, block of two layers", 8, 9)
def full_hook_block() -> str:
    """Which shapes does a full backward hook on Conv2d(3, 10, 1) and ReLU in a row get for input [1, 3, 8, 8]?"""
    block = nn.Sequential(nn.Conv2d(3, 10, 1), nn.ReLU())
    return full_grad_input(block, torch.ones(1, 3, 8, 8, requires_grad=True))


@fact("full hook, plain input", 2, 8)
def full_hook_plain_input() -> str:
    """No input requires grad: what does a full backward hook get as grad_input?"""
    layer = nn.Linear(4, 2)
    got: List[str] = []
    hook = lambda module, grad_input, grad_output: got.append(str(grad_input))  # noqa: E731
    require(layer, "register_full_backward_hook")(hook)
    layer(torch.ones(1, 4)).sum().backward()
    return got[0] if got else "does not fire"


@fact("full hook, plain input: warning", 2, 8)
def full_hook_plain_input_warning() -> str:
    """No input requires grad, and there is a full backward hook: which warning comes?"""
    layer = nn.Linear(4, 2)
    require(layer, "register_full_backward_hook")(lambda module, grad_input, grad_output: None)
    return list_warnings(lambda: layer(torch.ones(1, 4)).sum().backward())


def x_grad(register: str, hook: Any, rows: int = 2) -> str:
    """Return x.grad of 2 · x for x = [[3], …], where a backward hook of the layer can change it."""
    layer, x = double(), torch.full((rows, 1), 3.0, requires_grad=True)
    require(layer, register)(hook)
    layer(x).sum().backward()
    grad: Any = x.grad
    return number(grad[0])


def returned_by_full_hook(replace: Callable[[Any], Any]) -> str:
    """Return x.grad of 2 · x, where a full backward hook returns what `replace` makes of grad_input."""
    return x_grad("register_full_backward_hook", lambda module, grad_input, grad_output: replace(grad_input))


@fact("backward hook returns something else", 8)
def backward_hook_returns() -> List[str]:
    """x.grad would be 2; a backward hook returns something else than a tuple with 10 × as much: what is x.grad?"""
    full, before = "register_full_backward_hook", "register_full_backward_pre_hook"
    require(nn.Module, before)
    return [
        "None: " + x_grad(full, lambda module, gi, go: None),
        "a list: " + x_grad(full, lambda module, gi, go: [10 * gi[0]]),
        "a tensor of one row: " + describe_outcome(lambda: x_grad(full, lambda module, gi, go: 10 * gi[0], rows=1)),
        "pre-hook, a tensor of one row: "
        + describe_outcome(lambda: x_grad(before, lambda module, go: 10 * go[0], rows=1)),
        "pre-hook, a tensor: " + describe_outcome(lambda: x_grad(before, lambda module, go: 10 * go[0])),
        "legacy hook, a tensor: "
        + describe_outcome(lambda: x_grad("register_backward_hook", lambda module, gi, go: 10 * gi[0])),
    ]


@fact("full hook returns a tuple", 8)
def full_hook_returns_tuple() -> str:
    """x.grad would be 2; a full backward hook returns a tuple with 10 × as much: what is x.grad?"""
    return returned_by_full_hook(lambda grad_input: (10 * grad_input[0],))


@fact("full hook returns a bare tensor", 8)
def full_hook_returns_tensor() -> str:
    """A full backward hook returns a bare tensor, not a tuple: what happens?"""
    return returned_by_full_hook(lambda grad_input: 10 * grad_input[0])


@fact("full hook writes into grad_output", 8)
def full_hook_edits_grad_output() -> List[str]:
    """A full backward hook on 2 · 3 multiplies grad_output by 10 in place: what is weight.grad, else 3?"""
    found: List[str] = []
    for requires_grad in (True, False):
        layer = double()
        require(layer, "register_full_backward_hook")(lambda module, gi, go: go[0].mul_(10) and None)
        (1 * layer(torch.tensor([3.0], requires_grad=requires_grad))).backward()
        found.append("{}: {}".format("x requires grad" if requires_grad else "plain input", number(layer.weight.grad)))
    return found


@fact("full backward pre-hook × 10", 8)
def full_pre_hook_returns() -> str:
    """x.grad would be 2; a full backward pre-hook returns 10 × grad_output: what is x.grad?"""
    layer, x = double(), leaf(3.0)
    require(layer, "register_full_backward_pre_hook")(lambda module, grad_output: (10 * grad_output[0],))
    layer(x).sum().backward()
    return number(x.grad)


@fact("full hook next to in-place ReLU", 8)
def full_hook_in_place_relu() -> str:
    """A layer with a full backward hook stands before an in-place ReLU: what happens?"""
    layer = double()
    require(layer, "register_full_backward_hook")(lambda module, grad_input, grad_output: None)
    nn.Sequential(layer, nn.ReLU(inplace=True))(leaf(3.0)).backward()
    return "works"


@fact("full hook removed after forward", 1, 8)
def full_hook_removed_late() -> str:
    """A full backward hook is removed between forward and backward: does it still fire?"""
    layer = double()
    fired: List[int] = []
    hook = lambda module, grad_input, grad_output: fired.append(1)  # noqa: E731
    handle = require(layer, "register_full_backward_hook")(hook)
    output = layer(leaf(3.0))
    handle.remove()
    output.backward()
    return "fires" if fired else "does not fire"


@fact("full hook after a legacy one", 9)
def full_hook_after_legacy() -> str:
    """A legacy backward hook was registered and removed: may the module have a full one now?"""
    layer = double()
    require(layer, "register_full_backward_hook")
    layer.register_backward_hook(lambda module, grad_input, grad_output: None).remove()
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    return "yes"


@fact("full hook after a legacy one, in a copy", 9)
def full_hook_after_legacy_in_copy() -> str:
    """The same of a deep copy of the module: may it have a full backward hook?"""
    layer = double()
    require(layer, "register_full_backward_hook")
    layer.register_backward_hook(lambda module, grad_input, grad_output: None).remove()
    copy.deepcopy(layer).register_full_backward_hook(lambda module, grad_input, grad_output: None)
    return "yes"


@fact("what each hook changes", 3, 4, 7, 8)
def what_each_hook_changes() -> List[str]:
    """y = 2 · 3, and a hook returns 10 × what it gets: what are y, x.grad and weight.grad, else 6, 2 and 3?"""
    backward: Any = lambda grads: tuple(grad if grad is None else 10 * grad for grad in grads)  # noqa: E731
    hooks: Dict[str, Any] = {
        "module.register_forward_pre_hook": lambda module, args: (10 * args[0],),
        "module.register_forward_hook": lambda module, args, output: 10 * output,
        "module.register_full_backward_pre_hook": lambda module, grad_output: backward(grad_output),
        "module.register_full_backward_hook": lambda module, grad_input, grad_output: backward(grad_input),
        "module.register_backward_hook": lambda module, grad_input, grad_output: backward(grad_input),
        "tensor.register_hook": lambda grad: 10 * grad,
        "node.register_prehook": backward,
        "node.register_hook": lambda grad_inputs, grad_outputs: backward(grad_inputs),
    }
    for name, hook in list(hooks.items())[:5]:
        hooks[name.replace("module.register_", "register_module_")] = hook
    found: List[str] = []
    for name, hook in hooks.items():
        layer, x = double(), torch.full((1, 1), 3.0, requires_grad=True)
        owner, _, register = name.rpartition(".")
        owners: Dict[str, Any] = {"module": layer, "": nn.modules.module}
        with global_hooks() as handles:
            if owner in owners:
                handles.append(getattr(owners[owner], register, ignore)(hook))
            y = layer(x)
            if owner not in owners:
                handles.append(getattr(y if owner == "tensor" else y.grad_fn, register, ignore)(hook))
            if handles != [None]:  # else this torch has no such function
                y.backward()
                found.append("{}: {}, {}, {}".format(name, *map(number, (y, x.grad, layer.weight.grad))))
    return found


@contextlib.contextmanager
def global_hooks() -> Iterator[List[Any]]:
    """Yield a list; remove the handles that are in it then, and let torch forget which kind of backward hook it had.

    torch keeps whether the first global backward hook was a full one, and refuses the other kind from then on.
    """
    name = "_global_is_full_backward_hook"
    kind = getattr(nn.modules.module, name, None)
    setattr(nn.modules.module, name, None)
    handles: List[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            if handle is not None:
                handle.remove()
        setattr(nn.modules.module, name, kind)


def ignore(hook: Any) -> None:
    """Register nothing."""


@fact("order in a step", 2, 7, 8)
def order_of_step() -> str:
    """In which order do the hooks around a layer, its weight and a step fire, and when is each .grad filled?"""

    class NotedLinear(nn.Linear):
        def forward(self, x: Any) -> Any:
            order.append("forward()")
            return super().forward(x)

    order: List[str] = []
    layer: Any = NotedLinear(1, 1, bias=False)
    x: Any = torch.ones(1, 1, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    waiting: Dict[str, Callable[[], bool]] = {
        "x.grad": lambda: x.grad is not None,
        "weight.grad": lambda: layer.weight.grad is not None,
        "step()": lambda: not torch.equal(layer.weight, before),
    }
    before = layer.weight.detach().clone()

    def note(name: str) -> Callable[..., None]:
        def hook(*given: Any) -> None:
            for event in [event for event, happened in waiting.items() if happened()]:
                del waiting[event]
                order.append(event)
            order.append(name)

        return hook

    layer.register_forward_pre_hook(note("forward_pre"))
    layer.register_forward_hook(note("forward"))
    require(layer, "register_full_backward_pre_hook")(note("full_backward_pre"))
    layer.register_full_backward_hook(note("full_backward"))
    layer.weight.register_hook(note("tensor weight"))
    require(layer.weight, "register_post_accumulate_grad_hook")(note("post_accumulate_grad weight"))
    x.register_hook(note("tensor x"))
    optimizer.register_step_pre_hook(note("step_pre"))
    optimizer.register_step_post_hook(note("step_post"))
    y = layer(x)
    y.register_hook(note("tensor y"))
    y.retain_grad()
    waiting["y.grad"] = lambda: y.grad is not None
    order.append("backward()")
    (2 * y).backward()
    optimizer.step()
    return ", ".join(order)


@fact("global hooks and a module's own", 2)
def order_of_global_hooks() -> str:
    """Each kind of hook, once on a module or an optimizer and once for all of them: in which order do they fire?"""
    order: List[str] = []
    note: Any = lambda name: lambda *given: order.append(name)  # noqa: E731
    layer, x = double(), leaf(3.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    home = inspect.getmodule(torch.optim.Optimizer)  # torch.optim has no attribute of its name
    require(home, "register_optimizer_step_pre_hook")
    with global_hooks() as handles:
        for name in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
            getattr(layer, "register_{}_hook".format(name))(note(name))
            every = getattr(nn.modules.module, "register_module_{}_hook".format(name))
            handles.append(every(note("global " + name)))
        for name in ("step_pre", "step_post"):
            getattr(optimizer, "register_{}_hook".format(name))(note(name))
            handles.append(getattr(home, "register_optimizer_{}_hook".format(name))(note("global " + name)))
        layer(x).backward()
        optimizer.step()
    return ", ".join(order)


@fact("order around a node", 7)
def order_at_node() -> str:
    """y = 2 · x has hooks before and after its node: when do they fire, and when is y.grad filled by retain_grad?"""
    order: List[str] = []
    x = leaf(3.0)
    y = 2 * x
    y.retain_grad()
    y.register_hook(lambda grad: order.append("tensor y"))
    require(y.grad_fn, "register_prehook")(
        lambda grad_outputs: order.extend(["y.grad"] * (y.grad is not None) + ["node_pre"])
    )
    y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: order.append("node"))
    x.register_hook(lambda grad: order.append("tensor x"))
    y.backward()
    return ", ".join(order)


@fact("order around a Linear layer", 2)
def order_around_linear() -> str:
    """In which order do pre-hook, forward hook, hook on the output and full backward hook fire?"""
    layer = nn.Linear(4, 2)
    order: List[str] = []

    def forward_hook(module: Any, args: Any, output: Any) -> None:
        order.append("forward")
        output.register_hook(lambda grad: order.append("tensor"))

    layer.register_forward_pre_hook(lambda module, args: order.append("pre"))
    layer.register_forward_hook(forward_hook)
    hook = lambda module, grad_input, grad_output: order.append("backward")  # noqa: E731
    require(layer, "register_full_backward_hook")(hook)
    layer(leaf(1.0, 2.0, 3.0, 4.0)).sum().backward()
    return ", ".join(order)


# -- the legacy hook, and what is inside a layer ------------------------------------------------------------------


@fact("legacy hook: warning", 9)
def legacy_warning() -> str:
    """A module with a legacy backward hook is called, with 1-D input to a Linear layer: which warning comes?"""
    layer = nn.Linear(4, 2)
    layer.register_backward_hook(lambda module, grad_input, grad_output: None)
    return list_warnings(lambda: layer(leaf(1.0, 2.0, 3.0, 4.0)).sum().backward())


@fact("legacy hook, Linear, 1-D input", 9)
def legacy_linear_1d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [160]?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(160))


@fact("legacy hook, Linear, 2-D input", 9)
def legacy_linear_2d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [7, 160] that requires grad?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(7, 160, requires_grad=True))


@fact("legacy hook, Linear, 3-D input", 9)
def legacy_linear_3d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [2, 7, 160] that requires grad?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(2, 7, 160, requires_grad=True))


@fact("legacy hook, Conv2d, plain input", 9)
def legacy_conv() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 2, stride=2) get for input that does not require grad?"""
    return legacy_grad_input(nn.Conv2d(3, 10, 2, stride=2), torch.ones(1, 3, 8, 8))


@fact("legacy hook, Conv2d, requiring input", 9)
def legacy_conv_requiring() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 2, stride=2) get for input that requires grad?"""
    return legacy_grad_input(nn.Conv2d(3, 10, 2, stride=2), torch.ones(1, 3, 8, 8, requires_grad=True))


@fact("legacy hook, Conv2d behind a layer", 9)
def legacy_conv_behind_relu() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 2, stride=2) get for what a ReLU makes of plain input?"""
    return legacy_grad_input(nn.Conv2d(3, 10, 2, stride=2), nn.ReLU()(torch.ones(1, 3, 8, 8)))


@fact("legacy hook, Linear, strided input", 9)
def legacy_linear_strided() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for every second number of [320]?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(320, requires_grad=True)[::2])


@fact("number of entries in grad_input", 9)
def grad_input_entries() -> List[str]:
    """What does a full backward hook get as grad_input, and what a legacy one, where every input requires grad?"""
    inputs: Any = lambda *shape: torch.ones(*shape, requires_grad=True)  # noqa: E731
    cases: Dict[str, Tuple[Callable[[], nn.Module], Tuple[Any, ...]]] = {
        "Linear, 1-D": (lambda: nn.Linear(4, 5), (inputs(4),)),
        "Linear, 2-D": (lambda: nn.Linear(4, 5), (inputs(3, 4),)),
        "Linear, 3-D": (lambda: nn.Linear(4, 5), (inputs(2, 3, 4),)),
        "Linear without bias, 1-D": (lambda: nn.Linear(4, 5, bias=False), (inputs(4),)),
        "Linear without bias, 2-D": (lambda: nn.Linear(4, 5, bias=False), (inputs(3, 4),)),
        "Linear without bias, 3-D": (lambda: nn.Linear(4, 5, bias=False), (inputs(2, 3, 4),)),
        "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (inputs(2, 3, 4, 4),)),
        "x + y + z": (SumOfThree, (inputs(2), inputs(2), inputs(2))),
        "Embedding": (lambda: nn.Embedding(7, 3), (torch.tensor([1, 2]),)),
    }
    return [
        "{}: {}; {}".format(name, full_grad_input(make(), *args), legacy_grad_input(make(), *args))
        for name, (make, args) in cases.items()
    ]


@fact("legacy hook and a hook on the node", 9)
def legacy_hook_is_on_node() -> str:
    """Are the tensors that a legacy hook gets those of a hook on the node of the output?"""
    layer = nn.Linear(160, 5)
    got: List[Any] = []
    layer.register_backward_hook(lambda module, grad_input, grad_output: got.append(grad_input))
    output = layer(torch.ones(160))
    output.grad_fn.register_hook(lambda grad_inputs, grad_outputs: got.append(grad_inputs))
    output.sum().backward()
    return "yes" if [grad.data_ptr() for grad in got[0]] == [grad.data_ptr() for grad in got[1]] else "no"


@fact("when a legacy hook fires", 9)
def legacy_hook_order() -> str:
    """forward is two products: does a legacy hook fire before the gradient comes to the first one?"""
    order: List[str] = []

    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            middle = 5 * x
            middle.register_hook(lambda grad: order.append("first product"))
            return 2 * middle

    module = Twice()
    module.register_backward_hook(lambda module, grad_input, grad_output: order.append("legacy"))
    module(leaf(1.0)).backward()
    return ", ".join(order)


@fact("legacy hook, block of two layers", 9)
def legacy_block() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 1) and ReLU in a row get for input [1, 3, 8, 8]?"""
    block = nn.Sequential(nn.Conv2d(3, 10, 1), nn.ReLU())
    return legacy_grad_input(block, torch.ones(1, 3, 8, 8, requires_grad=True))


@fact("legacy hook returns 10 ×", 9)
def legacy_hook_returns() -> str:
    """y = 2 · 3, and a legacy hook returns 10 × grad_input: what are x.grad and weight.grad, else 2 and 3?"""
    layer, x = double(), torch.full((1, 1), 3.0, requires_grad=True)
    hook: Any = lambda module, grad_input, grad_output: tuple(10 * grad for grad in grad_input)  # noqa: E731
    layer.register_backward_hook(hook)
    layer(x).sum().backward()
    return "{}, {}".format(number(x.grad), number(layer.weight.grad))


@fact("last step of Linear, 1-D input", 9)
def node_linear_1d() -> str:
    """What is the node of the output of Linear(160, 5) for input [160], and what comes before it?"""
    return last_step(nn.Linear(160, 5)(torch.ones(160)))


@fact("last step of Linear, 2-D input", 9)
def node_linear_2d() -> str:
    """What is the node of the output of Linear(160, 5) for input [7, 160]?"""
    return last_step(nn.Linear(160, 5)(torch.ones(7, 160))).split(" <")[0]


@fact("last step of Linear, 3-D input", 9)
def node_linear_3d() -> str:
    """What is the node of the output of Linear(160, 5) for input [2, 7, 160], and what comes before it?"""
    return last_step(nn.Linear(160, 5)(torch.ones(2, 7, 160)))


@fact("last step of Linear, strided input", 9)
def node_linear_strided() -> str:
    """What is the node of the output of Linear(160, 5) for every second number of [320]?"""
    return last_step(nn.Linear(160, 5)(torch.ones(320)[::2])).split(" <")[0]


@fact("last step of Linear, transposed input", 9)
def node_linear_transposed() -> List[str]:
    """What is the node of the output of Linear(160, 5) for input that was made of [160, 7] or [2, 160, 7]?"""
    inputs = {"2-D": torch.ones(160, 7).t(), "3-D": torch.ones(2, 160, 7).transpose(1, 2)}
    layer = nn.Linear(160, 5)
    return ["{}: {}".format(name, last_step(layer(x)).split(" <")[0]) for name, x in inputs.items()]


@fact("before the last step of Conv2d", 9)
def node_conv_before() -> str:
    """What comes before the node of a Conv2d, if its input is a leaf that requires grad?"""
    return last_step(nn.Conv2d(3, 10, 2, stride=2)(torch.ones(1, 3, 8, 8, requires_grad=True))).split(" < ")[1]


@fact("last step of Conv2d", 9)
def node_conv() -> str:
    """What is the node of the output of a Conv2d?"""
    return last_step(nn.Conv2d(3, 10, 2, stride=2)(torch.ones(1, 3, 8, 8))).split(" <")[0]


# -- which hooks there are ----------------------------------------------------------------------------------------


@fact("functions of a module", 1)
def hooks_of_module() -> List[str]:
    """Which public hook functions has nn.Module?"""
    return hook_names(nn.Module)


@fact("functions for all modules", 2)
def hooks_of_all_modules() -> List[str]:
    """Which public functions set a hook for all modules?"""
    return [name for name in hook_names(nn.modules.module) if name.startswith("register")]


@fact("functions of a tensor", 7)
def hooks_of_tensor() -> List[str]:
    """Which public hook functions has a tensor?"""
    return [name for name in hook_names(torch.Tensor) if name.startswith("register")]


@fact("functions of a graph node", 7)
def hooks_of_node() -> List[str]:
    """Which public hook functions has an autograd node?"""
    return [name for name in hook_names((2 * leaf(1.0)).grad_fn) if name.startswith("register")]


@fact("functions of autograd.graph", 7)
def hooks_of_graph() -> List[str]:
    """Which public tools for hooks has torch.autograd.graph?"""
    return hook_names(require(torch.autograd, "graph"))


@fact("multi-grad hook, mode='any'", 7)
def multi_grad_hook_any() -> str:
    """How often does a multi-grad hook on two tensors fire, with mode="any"?"""
    multi = require(require(torch.autograd, "graph"), "register_multi_grad_hook", "mode")
    a, b = leaf(1.0), leaf(1.0)
    fired: List[int] = []
    multi((a, b), lambda grad: fired.append(1), mode="any")
    (a * b).sum().backward()
    return str(len(fired))


@fact("communication hook of DDP", 13)
def ddp_comm_hook() -> str:
    """Has DistributedDataParallel a register_comm_hook?"""
    require(nn.parallel.DistributedDataParallel, "register_comm_hook")
    return "yes"


@fact("functions of an optimizer", 1)
def hooks_of_optimizer() -> List[str]:
    """Which public hook functions has an optimizer?"""
    return [name for name in hook_names(torch.optim.Optimizer) if name.startswith("register")]


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
