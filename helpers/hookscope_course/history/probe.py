"""Ask the installed torch how its hooks behave, and print the answers as one JSON object.

    python probe.py

Runs on every torch from 1.0 on, so it is plain Python 3.6, needs nothing but torch, and is one long file: alone it is
handed to the Python of each release. Each probe is one small function: its docstring is the question, what it returns
is the answer, short enough for a chart. A probe that fails answers with its error, and the others go on. Answers hold
nothing that differs between two runs.
"""

import contextlib
import inspect
import json
import re
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Tuple, Union

import torch
from torch import nn

Answer = Union[str, List[str]]
MISSING = "missing"


class Probe(NamedTuple):
    """One question to torch: the function that asks it, a label for charts, and the chapters that teach the answer."""

    ask: Callable[[], Answer]
    label: str
    chapters: Tuple[int, ...]

    @property
    def question(self) -> str:
        """The question in plain words."""
        return " ".join((self.ask.__doc__ or "").split())


PROBES: Dict[str, Probe] = {}


def probe(label: str, *chapters: int) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Make a function one of `PROBES`, under its own name."""

    def add(ask: Callable[[], Answer]) -> Callable[[], Answer]:
        PROBES[ask.__name__] = Probe(ask, label, chapters)
        return ask

    return add


class NotThereError(Exception):
    """The torch that runs has no such function or argument."""


def run() -> Dict[str, Answer]:
    """Answer every probe: `{name: answer}`. Leaves random numbers and warnings as they were."""
    answers: Dict[str, Answer] = {}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for name, one in PROBES.items():
            try:
                answers[name] = one.ask()
            except NotThereError:
                answers[name] = MISSING
            except Exception as error:  # the answer of this torch, or news: either way it belongs in the record
                answers[name] = said(error)
    return answers


def said(error: Exception) -> str:
    """Return type and first sentence of an error, without addresses."""
    text = re.sub(r"<function \S+(?: at 0x[0-9a-f]+)?>", "<function>", str(error)).strip().split("\n")[0]
    return type(error).__name__ + ": " + re.split(r"\.(?=\s|$)", text)[0][:120]


# -- what the probes share ----------------------------------------------------------------------------------------


def leaf(*values: float) -> Any:
    """Return a tensor that requires grad."""
    return torch.tensor(values, requires_grad=True)


def double() -> nn.Linear:
    """Return a layer that computes 2 · x."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    return layer


def need(owner: Any, name: str, argument: str = "") -> Any:
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


def legacy_grad_input(layer: nn.Module, x: Any) -> str:
    """Return the shapes that a legacy backward hook gets as grad_input."""
    got: List[str] = []
    layer.register_backward_hook(lambda module, grad_input, grad_output: got.append(shapes(grad_input)))
    layer(x).sum().backward()
    return " and again ".join(got) or "does not fire"


def last_step(output: Any) -> str:
    """Return the name of an output's node, and of the nodes before it: "AddBackward0 < SqueezeBackward0"."""
    node = output.grad_fn
    before = [type(other).__name__ for other, _ in node.next_functions if other is not None]
    return type(node).__name__ + " < " + ", ".join(before)


def hook_names(owner: Any) -> List[str]:
    """Return the public functions of `owner` that have to do with hooks or callbacks."""
    return sorted(name for name in dir(owner) if re.match(r"(?!_).*(hook|callback)", name))


# -- forward ------------------------------------------------------------------------------------------------------


@probe("forward hook returns a value", 3)
def forward_hook_returns() -> str:
    """A layer computes 6, and its forward hook returns 60: what does the caller get?"""
    layer = double()
    layer.register_forward_hook(lambda module, args, output: output * 10)
    return number(layer(torch.tensor([3.0])))


@probe("forward hook edits in place", 3)
def forward_hook_edits_in_place() -> str:
    """A layer computes 6, and its forward hook adds 5 to it in place: what does the caller get?"""
    layer = double()

    def add_five(module: Any, args: Any, output: Any) -> None:
        output.add_(5)

    layer.register_forward_hook(add_five)
    return number(layer(torch.tensor([3.0])))


@probe("pre-hook returns a value", 4)
def pre_hook_returns() -> str:
    """A layer doubles its input 3, and its forward pre-hook returns 30: what does the layer compute?"""
    layer = double()
    layer.register_forward_pre_hook(lambda module, args: args[0] * 10)
    return number(layer(torch.tensor([3.0])))


@probe("pre-hook returns a list", 4)
def pre_hook_returns_list() -> str:
    """A forward pre-hook returns a list of two tensors: how many arguments does forward get?"""
    got: List[int] = []

    class Count(nn.Module):
        def forward(self, *args: Any) -> Any:
            got.append(len(args))
            return torch.zeros(1)

    module = Count()
    module.register_forward_pre_hook(lambda module, args: [torch.zeros(1), torch.zeros(1)])
    module(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    return {3: "3, the list is ignored", 2: "2", 1: "1, the list itself"}[got[0]]


@probe("forward called directly", 1)
def forward_called_directly() -> str:
    """How often does a forward hook fire when you call module.forward(x) in place of module(x)?"""
    layer = double()
    fired: List[int] = []
    layer.register_forward_hook(lambda module, args, output: fired.append(1))
    layer.forward(torch.tensor([3.0]))
    return str(len(fired))


@probe("hook with too few parameters", 1)
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


@probe("order of three forward hooks", 2)
def forward_hook_order() -> str:
    """Three forward hooks are registered, 1, 2, 3: in which order do they run?"""
    layer = double()
    order: List[str] = []
    for name in "123":
        layer.register_forward_hook(lambda module, args, output, name=name: order.append(name))
    layer(torch.tensor([3.0]))
    return " ".join(order)


@probe("prepend=True", 2)
def forward_hook_prepend() -> str:
    """Forward hook 1 is registered, then hook 2 with prepend=True: in which order do they run?"""
    need(nn.Module, "register_forward_hook", "prepend")
    layer = double()
    order: List[str] = []
    layer.register_forward_hook(lambda module, args, output: order.append("1"))
    layer.register_forward_hook(lambda module, args, output: order.append("2"), prepend=True)
    layer(torch.tensor([3.0]))
    return " ".join(order)


class Scale(nn.Module):
    """Multiply by a factor, which must not be 0."""

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        """Return factor · x."""
        if factor == 0:
            raise ValueError("factor is 0")
        return x * factor


@probe("with_kwargs=True", 1, 3)
def forward_hook_with_kwargs() -> str:
    """What does a forward hook see of module(x, factor=2) with with_kwargs=True?"""
    need(nn.Module, "register_forward_hook", "with_kwargs")
    module = Scale()
    got: List[str] = []
    hook = lambda module, args, kwargs, output: got.append("{} args, {}".format(len(args), kwargs))  # noqa: E731
    module.register_forward_hook(hook, with_kwargs=True)
    module(torch.tensor([3.0]), factor=2)
    return got[0]


@probe("always_call=True", 3)
def forward_hook_always_call() -> str:
    """forward raises: does a forward hook with always_call=True still fire?"""
    need(nn.Module, "register_forward_hook", "always_call")
    module = Scale()
    got: List[str] = []
    hook = lambda module, args, output: got.append("fires, output is {}".format(output))  # noqa: E731
    module.register_forward_hook(hook, always_call=True)
    with contextlib.suppress(ValueError):
        module(torch.tensor([3.0]), 0)
    return got[0] if got else "does not fire"


# -- tensors ------------------------------------------------------------------------------------------------------


@probe("retain_grad, then a hook × 10", 7)
def retain_grad_then_hook() -> str:
    """b.retain_grad(), then b gets a hook that returns 10 × its gradient 1: what is b.grad?"""
    b = 2 * leaf(1.0)
    b.retain_grad()
    b.register_hook(lambda grad: grad * 10)
    b.sum().backward()
    return number(b.grad)


@probe("a hook × 10, then retain_grad", 7)
def hook_then_retain_grad() -> str:
    """b gets a hook that returns 10 × its gradient 1, then b.retain_grad(): what is b.grad?"""
    b = 2 * leaf(1.0)
    b.register_hook(lambda grad: grad * 10)
    b.retain_grad()
    b.sum().backward()
    return number(b.grad)


@probe("an observing tensor hook", 7)
def tensor_hook_observes() -> str:
    """A tensor hook that only looks, on b with retain_grad: does it get what b.grad then holds?"""
    got: List[Any] = []
    b = 2 * leaf(1.0)
    b.retain_grad()
    b.register_hook(got.append)
    (3 * b).sum().backward()
    return "yes" if torch.equal(got[0], b.grad) else "no"


@probe("two tensor hooks, + 1 and × 10", 7)
def tensor_hook_order() -> str:
    """A tensor hook adds 1 to the gradient 1, a second one multiplies by 10: what arrives?"""
    a = leaf(1.0)
    a.register_hook(lambda grad: grad + 1)
    a.register_hook(lambda grad: grad * 10)
    a.sum().backward()
    return number(a.grad)


@probe("tensor hook under autograd.grad", 7)
def tensor_hook_autograd_grad() -> str:
    """torch.autograd.grad asks for the gradient 1 of b, whose hook returns 10 × it: what comes back?"""
    b = 2 * leaf(1.0)
    b.register_hook(lambda grad: grad * 10)
    return number(torch.autograd.grad(b.sum(), b)[0])


@probe("post-accumulate hook", 7, 12)
def post_accumulate_hook() -> str:
    """What does a hook of register_post_accumulate_grad_hook find in .grad, when the gradient is 1?"""
    a = leaf(1.0)
    got: List[str] = []
    need(a, "register_post_accumulate_grad_hook")(lambda tensor: got.append(number(tensor.grad)))
    a.sum().backward()
    return got[0]


@probe("hook on an AccumulateGrad node", 7)
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


@probe("full hook: grad_input", 8)
def full_hook_grad_input() -> str:
    """y = x1 · x2 · W with 2, 3, 5: what does a full backward hook get as grad_input?"""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W = nn.Parameter(torch.tensor([5.0]))

        def forward(self, x1: Any, x2: Any) -> Any:
            return x1 * x2 * self.W

    module = Product()
    got: List[str] = []
    hook = lambda module, grad_input, grad_output: got.append(", ".join(map(number, grad_input)))  # noqa: E731
    need(module, "register_full_backward_hook")(hook)
    module(leaf(2.0), leaf(3.0)).backward()
    return got[0]


@probe("full hook, plain input", 2, 8)
def full_hook_plain_input() -> str:
    """No input requires grad: what does a full backward hook get as grad_input?"""
    layer = nn.Linear(4, 2)
    got: List[str] = []
    hook = lambda module, grad_input, grad_output: got.append(str(grad_input))  # noqa: E731
    need(layer, "register_full_backward_hook")(hook)
    layer(torch.ones(1, 4)).sum().backward()
    return got[0] if got else "does not fire"


@probe("full hook, plain input: warning", 2, 8)
def full_hook_plain_input_warning() -> str:
    """No input requires grad, and there is a full backward hook: which warning comes?"""
    layer = nn.Linear(4, 2)
    need(layer, "register_full_backward_hook")(lambda module, grad_input, grad_output: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(torch.ones(1, 4)).sum().backward()
    return ", ".join(sorted({warning.category.__name__ for warning in caught})) or "none"


def returned_by_full_hook(replace: Callable[[Any], Any]) -> str:
    """Let a full backward hook on 2 · x return what `replace` makes of grad_input, for x = [[3], [3]]."""
    layer, x = double(), torch.full((2, 1), 3.0, requires_grad=True)
    need(layer, "register_full_backward_hook")(lambda module, grad_input, grad_output: replace(grad_input))
    layer(x).sum().backward()
    grad: Any = x.grad
    return number(grad[0])


@probe("full hook returns a tuple", 8)
def full_hook_returns_tuple() -> str:
    """x.grad would be 2; a full backward hook returns a tuple with 10 × as much: what is x.grad?"""
    return returned_by_full_hook(lambda grad_input: (10 * grad_input[0],))


@probe("full hook returns a bare tensor", 8)
def full_hook_returns_tensor() -> str:
    """A full backward hook returns a bare tensor, not a tuple: what happens?"""
    return returned_by_full_hook(lambda grad_input: 10 * grad_input[0])


@probe("full backward pre-hook × 10", 8)
def full_pre_hook_returns() -> str:
    """x.grad would be 2; a full backward pre-hook returns 10 × grad_output: what is x.grad?"""
    layer, x = double(), leaf(3.0)
    need(layer, "register_full_backward_pre_hook")(lambda module, grad_output: (10 * grad_output[0],))
    layer(x).sum().backward()
    return number(x.grad)


@probe("full hook next to in-place ReLU", 8)
def full_hook_in_place_relu() -> str:
    """A layer with a full backward hook stands before an in-place ReLU: what happens?"""
    layer = double()
    need(layer, "register_full_backward_hook")(lambda module, grad_input, grad_output: None)
    nn.Sequential(layer, nn.ReLU(inplace=True))(leaf(3.0)).backward()
    return "works"


@probe("full hook removed after forward", 1, 8)
def full_hook_removed_late() -> str:
    """A full backward hook is removed between forward and backward: does it still fire?"""
    layer = double()
    fired: List[int] = []
    hook = lambda module, grad_input, grad_output: fired.append(1)  # noqa: E731
    handle = need(layer, "register_full_backward_hook")(hook)
    output = layer(leaf(3.0))
    handle.remove()
    output.backward()
    return "fires" if fired else "does not fire"


@probe("full hook after a legacy one", 9)
def full_hook_after_legacy() -> str:
    """A legacy backward hook was registered and removed: may the module have a full one now?"""
    layer = double()
    need(layer, "register_full_backward_hook")
    layer.register_backward_hook(lambda module, grad_input, grad_output: None).remove()
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    return "yes"


@probe("order around a Linear layer", 2)
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
    need(layer, "register_full_backward_hook")(hook)
    layer(leaf(1.0, 2.0, 3.0, 4.0)).sum().backward()
    return ", ".join(order)


# -- the legacy hook, and what is inside a layer ------------------------------------------------------------------


@probe("legacy hook: warning", 9)
def legacy_warning() -> str:
    """A module with a legacy backward hook is called, with 1-D input to a Linear layer: which warning comes?"""
    layer = nn.Linear(4, 2)
    layer.register_backward_hook(lambda module, grad_input, grad_output: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(leaf(1.0, 2.0, 3.0, 4.0)).sum().backward()
    return ", ".join(sorted({warning.category.__name__ for warning in caught})) or "none"


@probe("legacy hook, Linear, 1-D input", 9)
def legacy_linear_1d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [160]?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(160))


@probe("legacy hook, Linear, 2-D input", 9)
def legacy_linear_2d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [7, 160] that requires grad?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(7, 160, requires_grad=True))


@probe("legacy hook, Linear, 3-D input", 9)
def legacy_linear_3d() -> str:
    """Which shapes does a legacy hook on Linear(160, 5) get for input [2, 7, 160] that requires grad?"""
    return legacy_grad_input(nn.Linear(160, 5), torch.ones(2, 7, 160, requires_grad=True))


@probe("legacy hook, Conv2d, plain input", 9)
def legacy_conv() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 2, stride=2) get for input that does not require grad?"""
    return legacy_grad_input(nn.Conv2d(3, 10, 2, stride=2), torch.ones(1, 3, 8, 8))


@probe("legacy hook, Conv2d, requiring input", 9)
def legacy_conv_requiring() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 2, stride=2) get for input that requires grad?"""
    return legacy_grad_input(nn.Conv2d(3, 10, 2, stride=2), torch.ones(1, 3, 8, 8, requires_grad=True))


@probe("legacy hook, block of two layers", 9)
def legacy_block() -> str:
    """Which shapes does a legacy hook on Conv2d(3, 10, 1) and ReLU in a row get for input [1, 3, 8, 8]?"""
    block = nn.Sequential(nn.Conv2d(3, 10, 1), nn.ReLU())
    return legacy_grad_input(block, torch.ones(1, 3, 8, 8, requires_grad=True))


@probe("legacy hook returns 10 ×", 9)
def legacy_hook_returns() -> str:
    """y = 2 · 3, and a legacy hook returns 10 × grad_input: what are x.grad and weight.grad, else 2 and 3?"""
    layer, x = double(), torch.full((1, 1), 3.0, requires_grad=True)
    hook: Any = lambda module, grad_input, grad_output: tuple(10 * grad for grad in grad_input)  # noqa: E731
    layer.register_backward_hook(hook)
    layer(x).sum().backward()
    return "{}, {}".format(number(x.grad), number(layer.weight.grad))


@probe("last step of Linear, 1-D input", 9)
def node_linear_1d() -> str:
    """What is the node of the output of Linear(160, 5) for input [160], and what comes before it?"""
    return last_step(nn.Linear(160, 5)(torch.ones(160)))


@probe("last step of Linear, 2-D input", 9)
def node_linear_2d() -> str:
    """What is the node of the output of Linear(160, 5) for input [7, 160]?"""
    return last_step(nn.Linear(160, 5)(torch.ones(7, 160))).split(" <")[0]


@probe("last step of Linear, 3-D input", 9)
def node_linear_3d() -> str:
    """What is the node of the output of Linear(160, 5) for input [2, 7, 160], and what comes before it?"""
    return last_step(nn.Linear(160, 5)(torch.ones(2, 7, 160)))


@probe("last step of Conv2d", 9)
def node_conv() -> str:
    """What is the node of the output of a Conv2d?"""
    return last_step(nn.Conv2d(3, 10, 2, stride=2)(torch.ones(1, 3, 8, 8))).split(" <")[0]


# -- which hooks there are ----------------------------------------------------------------------------------------


@probe("functions of a module", 1)
def hooks_of_module() -> List[str]:
    """Which public hook functions has nn.Module?"""
    return hook_names(nn.Module)


@probe("functions for all modules", 2)
def hooks_of_all_modules() -> List[str]:
    """Which public functions set a hook for all modules?"""
    return [name for name in hook_names(nn.modules.module) if name.startswith("register")]


@probe("functions of a tensor", 7)
def hooks_of_tensor() -> List[str]:
    """Which public hook functions has a tensor?"""
    return [name for name in hook_names(torch.Tensor) if name.startswith("register")]


@probe("functions of a graph node", 7)
def hooks_of_node() -> List[str]:
    """Which public hook functions has an autograd node?"""
    return [name for name in hook_names((2 * leaf(1.0)).grad_fn) if name.startswith("register")]


@probe("functions of autograd.graph", 7)
def hooks_of_graph() -> List[str]:
    """Which public tools for hooks has torch.autograd.graph?"""
    return hook_names(need(torch.autograd, "graph"))


@probe("multi-grad hook, mode='any'", 7)
def multi_grad_hook_any() -> str:
    """How often does a multi-grad hook on two tensors fire, with mode="any"?"""
    multi = need(need(torch.autograd, "graph"), "register_multi_grad_hook", "mode")
    a, b = leaf(1.0), leaf(1.0)
    fired: List[int] = []
    multi((a, b), lambda grad: fired.append(1), mode="any")
    (a * b).sum().backward()
    return str(len(fired))


@probe("communication hook of DDP", 13)
def ddp_comm_hook() -> str:
    """Has DistributedDataParallel a register_comm_hook?"""
    need(nn.parallel.DistributedDataParallel, "register_comm_hook")
    return "yes"


@probe("functions of an optimizer", 1)
def hooks_of_optimizer() -> List[str]:
    """Which public hook functions has an optimizer?"""
    return [name for name in hook_names(torch.optim.Optimizer) if name.startswith("register")]


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
