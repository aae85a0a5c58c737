"""Exercises of chapter 06: three hunts for a layer or a channel, and gradients beside an in-place ReLU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hookscope import capture, census, find_layers, samples
from hookscope.layers.find import LayerNotFoundError
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "patient", "q1", "q2", "q3", "q4"]


def patient() -> nn.Module:
    """Build the digit CNN after an accident: one of its layers has died."""
    net = samples.digit_cnn()
    nn.init.constant_(net.get_submodule("block2.conv").get_parameter("bias"), -100.0)
    return net


def _check_dead(layer: object) -> Wrong | None:
    if not isinstance(layer, str):
        return Wrong(f'the answer is a layer\'s name, as in "block1.conv", not a {type(layer).__name__}')
    net, five = patient(), samples.digit(5)
    try:
        find_layers(net, layer)
    except LayerNotFoundError as error:
        return Wrong(str(error))
    with torch.no_grad(), capture(net, lambda name, module: True) as seen:
        net(five)
    output = seen[layer].output if layer in seen else torch.ones(1)
    zeros = round(100 * float((output == 0).float().mean()))
    if zeros < 100:
        below = f", for all its values lie below 0, up to {output.max():.0f}" if output.max() < 0 else ""
        return Wrong(f"{zeros} % of what {layer} returns is zero{below}; another layer returns nothing but zeros")
    if layer == "block2":
        return Wrong("block2 returns nothing but zeros, since the last layer in it does; look at the layers in it")
    if layer != "block2.relu":
        return Wrong(f"{layer} returns nothing but zeros, but so does the layer before it; which one was the first?")
    return None


q1 = Exercise(
    "06.1",
    question="Hunt 1, the deadest layer. Every digit gets the same answer from `ill`. Some of its layers return "
    "nothing but zeros. Which one is the first? Give its name.",
    difficulty="easy",
    minutes=3,
    check=_check_dead,
    why="All values of `block2.conv` lie far below 0, so its ReLU returns only zeros. Somebody set its bias to −100.",
    hints=(
        "Walk down the list with the arrow keys. The table under the maps has a line for the zeros.",
        "A conv never returns an exact 0, and pooling only hands on what it gets. So it is one of the three ReLUs.",
    ),
    solution="""
q1.check("block2.relu")
""",
    wrong={
        'q1.check("block2.conv")\n': "all its values lie below 0",
        'q1.check("block2.pool")\n': "so does the layer before it",
        'q1.check("block2")\n': "look at the layers in it",
        'q1.check("block3.relu")\n': "another layer returns nothing but zeros",
        'q1.check("block2.rely")\n': "did you mean 'block2.relu'",
        "q1.check(2)\n": "a layer's name",
    },
)


def _check_vertical(channel: object) -> Wrong | None:
    if isinstance(channel, Tensor) and channel.numel() == 1:
        channel = channel.item()
    if isinstance(channel, bool) or not isinstance(channel, int):
        return Wrong(f"the answer is the number of a channel, not a {type(channel).__name__}")
    net = samples.digit_cnn()
    with torch.no_grad(), capture(net, "block2.relu") as seen:
        net(_bars())
    standing, lying = seen["block2.relu"].output.amax(dim=(2, 3))
    if not 0 <= channel < len(standing):
        return Wrong(f"there is no channel {channel}; block2.relu has channels 0 to {len(standing) - 1}")
    more = standing - lying
    if channel == int(more.argmax()):
        return None
    reached = f"channel {channel} reaches {standing[channel]:.2f} on the standing bar and {lying[channel]:.2f} lying"
    if channel == int(more.argmin()):
        return Wrong(f"{reached}: of all channels this one likes the lying bar most")
    if channel == int(standing.argmax()):
        return Wrong(f"{reached}: the highest of all, and nearly the same for both, so it prefers neither")
    if more[channel] > 0:
        return Wrong(f"{reached}: it prefers the standing bar, but another channel does so by more")
    return Wrong(f"{reached}: it does not prefer the standing bar")


def _bars() -> Tensor:
    bars = torch.zeros(2, 1, 28, 28)
    bars[0, 0, 4:24, 13:16] = 1
    bars[1, 0, 13:16, 4:24] = 1
    return bars


q2 = Exercise(
    "06.2",
    question="Hunt 2, the channel that prefers vertical strokes. Sample 0 of `bars` is a standing bar, sample 1 the "
    "same bar lying down. In which channel of `block2.relu` is the highest value of sample 0 above that of sample 1 by "
    "most? Give its number.",
    difficulty="medium",
    minutes=4,
    check=_check_vertical,
    why="Both bars have equally many pixels. What tells them apart is the direction, and this channel looks for one.",
    hints=(
        "The maps stand in the order of their highest value. Switch to sample 1: which one drops furthest?",
        "In code: `hunt.activation.amax(dim=(2, 3))` has two rows, one per bar.",
        "Subtract the second row from the first and take `.argmax()`.",
    ),
    solution="""
standing, lying = hunt.activation.amax(dim=(2, 3))
channel = (standing - lying).argmax().item()

q2.check(channel)
""",
    wrong={
        """
standing, lying = hunt.activation.amax(dim=(2, 3))
q2.check(standing.argmax().item())
""": "so it prefers neither",
        """
standing, lying = hunt.activation.amax(dim=(2, 3))
q2.check((lying - standing).argmax().item())
""": "likes the lying bar most",
        "q2.check(11)\n": "another channel does so by more",
        "q2.check(24)\n": "block2.relu has channels 0 to 23",
        "q2.check('block2.relu')\n": "the number of a channel",
    },
    setup="""
from hookscope import samples
from hookscope.widgets import LayerPicker

bars = torch.zeros(2, 1, 28, 28)
bars[0, 0, 4:24, 13:16] = 1
bars[1, 0, 13:16, 4:24] = 1
hunt = LayerPicker(samples.digit_cnn(), bars, layer="block2.relu")
""",
)


def _small(inplace: bool) -> nn.Sequential:
    """Make 3, -4 into 6, -8, then 6, 0, then 9, 0, then 9, then 9, 9; the ReLU changes most of all leaves."""
    net = nn.Sequential()
    net.add_module("twice", nn.Linear(2, 2, bias=False))
    net.add_module("relu", nn.ReLU(inplace))
    net.add_module("more", nn.Linear(2, 2, bias=False))
    net.add_module("sum", nn.Linear(2, 1, bias=False))
    net.add_module("spread", nn.Linear(1, 2, bias=False))
    values = {
        "twice": 2 * torch.eye(2),
        "more": 1.5 * torch.eye(2),
        "sum": torch.ones(1, 2),
        "spread": torch.ones(2, 1),
    }
    net.load_state_dict({f"{name}.weight": value for name, value in values.items()})
    return net.eval()


def _check_most_changed(most_changed: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    x = torch.tensor([[3.0, -4.0]])
    cases = [
        ("a small network of Linear layers and a ReLU", _small(inplace=False), x, "relu"),
        ("the same network with an in-place ReLU", _small(inplace=True), x, "relu"),
        ("the digit CNN", samples.digit_cnn(), samples.digit(5), "block3.relu"),
    ]
    for number, (what, net, given, expected) in enumerate(cases):
        answer = most_changed(net, given)
        if len(census(net, include_global=False)):
            return Wrong(f"your function left hooks on {what}; remove every handle")
        if answer == expected:
            continue
        if answer is None:
            return Wrong("your function returned None; return the name of a layer")
        if number == 1:
            return Wrong(
                f"for {what} you returned {answer!r}, not 'relu': when the forward hook runs, the in-place ReLU has "
                "overwritten its input already, so nothing seems to change; take a copy before it runs"
            )
        if isinstance(answer, str) and answer in dict(net.named_modules()) and net.get_submodule(answer)._modules:
            return Wrong(f"for {what} you returned {answer!r}, which has other layers in it; ask the leaves only")
        return Wrong(f"for {what} you returned {answer!r}, but {expected!r} changes its input by more")
    return None


q3 = Exercise(
    "06.3",
    question="Hunt 3, the layer that changes most. Write `most_changed(model, x)`. Look at the leaves whose output "
    "has the same shape as their input. Return the name of the one that changes it most, by "
    "`(output - before).abs().mean()`. Every leaf here takes one tensor and returns one. Leave no hook behind.",
    difficulty="hard",
    minutes=7,
    check=_check_most_changed,
    why="A pre-hook saw the input while it was still there, and the forward hook had something to compare with.",
    hints=(
        "`hookscope.leaves(model)` gives names and modules. Make a hook for each, as `keep_as(name)` in chapter 00.",
        "Which of your tensors may be overwritten between the pre-hook and the forward hook? Clone it.",
        "Pre-hook: `before[name] = args[0].clone()`. Forward hook: compare shapes, then write `changes[name]`. At the "
        "end `max(changes, key=changes.get)`.",
    ),
    solution="""
def most_changed(model, x):
    before, changes, handles = {}, {}, []

    def copy_input(name):
        def hook(module, args):
            before[name] = args[0].clone()
        return hook

    def compare(name):
        def hook(module, args, output):
            if output.shape == before[name].shape:
                changes[name] = (output - before[name]).abs().mean().item()
        return hook

    for name, layer in hookscope.leaves(model).items():
        handles.append(layer.register_forward_pre_hook(copy_input(name)))
        handles.append(layer.register_forward_hook(compare(name)))
    model(x)
    for handle in handles:
        handle.remove()
    return max(changes, key=changes.get)

q3.check(most_changed)
""",
    wrong={
        """
def most_changed(model, x):
    changes, handles = {}, []

    def compare(name):
        def hook(module, args, output):
            if output.shape == args[0].shape:
                changes[name] = (output - args[0]).abs().mean().item()
        return hook

    for name, layer in hookscope.leaves(model).items():
        handles.append(layer.register_forward_hook(compare(name)))
    model(x)
    for handle in handles:
        handle.remove()
    return max(changes, key=changes.get)

q3.check(most_changed)
""": "overwritten its input already",
        """
def most_changed(model, x):
    before, changes = {}, {}
    for name, layer in hookscope.leaves(model).items():
        def copy_input(module, args):
            before[module] = args[0].clone()
        def compare(module, args, output, name=name):
            if output.shape == before[module].shape:
                changes[name] = (output - before[module]).abs().mean().item()
        layer.register_forward_pre_hook(copy_input)
        layer.register_forward_hook(compare)
    model(x)
    return max(changes, key=changes.get)

q3.check(most_changed)
""": "your function left hooks on",
        """
def most_changed(model, x):
    changes, handles = {}, []

    def compare(name):
        def hook(module, args, output):
            changes[name] = (output - args[0]).abs().mean().item()
        return hook

    for name, layer in hookscope.leaves(model).items():
        handles.append(layer.register_forward_hook(compare(name)))
    model(x)
    for handle in handles:
        handle.remove()
    return max(changes, key=changes.get)

q3.check(most_changed)
""": "you returned 'sum', but 'relu' changes",
        """
def most_changed(model, x):
    before, changes, handles = {}, {}, []

    def copy_input(name):
        return lambda module, args: before.update({name: args[0].clone()})

    def compare(name):
        def hook(module, args, output):
            if output.shape == before[name].shape:
                changes[name] = (output - before[name]).abs().mean().item()
        return hook

    for name, layer in model.named_modules():
        handles.append(layer.register_forward_pre_hook(copy_input(name)))
        handles.append(layer.register_forward_hook(compare(name)))
    model(x)
    for handle in handles:
        handle.remove()
    return max(changes, key=changes.get)

q3.check(most_changed)
""": "which has other layers in it",
    },
    setup="import hookscope\n",
)


def _check_gradients(gradients_of: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    for inplace in (False, True):
        net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(inplace), nn.Conv2d(1, 1, 1), nn.ReLU(inplace)).eval()
        for layer, weight in ((net[0], 2.0), (net[2], 3.0)):
            nn.init.constant_(layer.weight, weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        x = torch.ones(1, 1, 2, 2)
        try:
            grads = gradients_of(net, x)
        except RuntimeError as error:
            if "BackwardHookFunction" in str(error):
                return Wrong(
                    "beside an in-place ReLU it still raises: a full backward hook makes the output a view, and the "
                    "ReLU writes into it; hang a hook on the output tensor instead"
                )
            raise
        if len(census(net, include_global=False)):
            return Wrong("the gradients may be right, but your hooks are still on the network; remove them")
        if not isinstance(grads, dict):
            return Wrong(f"your function returned {grads!r}; return the dictionary of gradients")
        if set(grads) != {"0", "2"}:
            return Wrong(f"there are gradients for {sorted(grads)}; the convs are '0' and '2'")
        found = {name: _mean(grad) for name, grad in grads.items()}
        if found == {"0": 3.0, "2": 1.0}:
            continue
        if found == {"0": 6.0, "2": 3.0}:
            return Wrong("these are the gradients of what goes into each conv; asked for are those of what comes out")
        return Wrong(f"for convs of weight 2 and 3 the gradients of their outputs are 3 and 1; yours are {found}")
    return None


def _mean(value: object) -> object:
    return round(float(value.mean()), 4) if isinstance(value, Tensor) else value


q4 = Exercise(
    "06.4",
    question="Find the defect. This function keeps the gradient of what each conv returned. On `resnet18` it works, on "
    "`vgg16` it raises. Change it so that it works on both, and on every network with an in-place ReLU.",
    difficulty="medium",
    minutes=5,
    check=_check_gradients,
    why="A hook on the output tensor belongs to the tensor as it was then. It needs no view, so the ReLU may write.",
    hints=(
        "`register_full_backward_hook` makes what the module returns a view. An in-place ReLU may not write into it.",
        "A forward hook holds the output. A tensor has `register_hook`, as in chapter 02.",
        "`layer.register_forward_hook(...)`, and in that hook `output.register_hook(...)`, whose hook gets `grad`.",
    ),
    solution="""
def gradients_of(model, x):
    grads, handles = {}, []

    def keep_as(name):
        def hook(module, args, output):
            output.register_hook(lambda grad: grads.update({name: grad}))
        return hook

    for name, conv in hookscope.find_layers(model, nn.Conv2d).items():
        handles.append(conv.register_forward_hook(keep_as(name)))
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return grads

q4.check(gradients_of)
""",
    wrong={
        """
def gradients_of(model, x):
    grads, handles = {}, []

    def keep_as(name):
        def hook(module, grad_input, grad_output):
            grads[name] = grad_output[0]
        return hook

    for name, conv in hookscope.find_layers(model, nn.Conv2d).items():
        handles.append(conv.register_full_backward_hook(keep_as(name)))
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return grads

q4.check(gradients_of)
""": "a full backward hook makes the output a view",
        """
def gradients_of(model, x):
    grads = {}

    def keep_as(name):
        def hook(module, args, output):
            output.register_hook(lambda grad: grads.update({name: grad}))
        return hook

    for name, conv in hookscope.find_layers(model, nn.Conv2d).items():
        conv.register_forward_hook(keep_as(name))
    model(x).sum().backward()
    return grads

q4.check(gradients_of)
""": "your hooks are still on the network",
        """
def gradients_of(model, x):
    grads, handles = {}, []

    def keep_as(name):
        def hook(module, args):
            x = args[0].clone().requires_grad_() if not args[0].requires_grad else args[0]
            x.register_hook(lambda grad: grads.update({name: grad.clone()}))
            return (x,)
        return hook

    for name, conv in hookscope.find_layers(model, nn.Conv2d).items():
        handles.append(conv.register_forward_pre_hook(keep_as(name)))
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return grads

q4.check(gradients_of)
""": "of what goes into each conv",
        """
def gradients_of(model, x):
    grads, handles = {}, []

    def keep(module, args, output):
        output.register_hook(lambda grad: grads.update({"conv": grad}))

    for name, conv in hookscope.find_layers(model, nn.Conv2d).items():
        handles.append(conv.register_forward_hook(keep))
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return grads

q4.check(gradients_of)
""": "there are gradients for ['conv']",
    },
    setup="import hookscope\n",
)
