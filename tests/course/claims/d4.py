"""Demonstrations of the claims of document D4: hooks through the source of nn.Module."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import warnings

import pytest
import torch
from torch import nn

from hookscope import samples
from hookscope_course.history.records import history
from tests.course.claims import Found, d2, shows
from tests.course.claims.parts import THREE, Double, doubling


@shows("D4.1")
def leaves_the_code_alone() -> None:
    net = samples.digit_cnn()
    before, forward = {name: value.clone() for name, value in net.state_dict().items()}, net.block1.forward
    with net.block1.register_forward_hook(lambda module, args, output: None):
        net(samples.digit(5))
        assert net.block1.forward == forward  # of the same object, by the same function
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@shows("D4.3")
def there_are_more_than_three() -> None:
    kinds = {name for name in dir(nn.Module) + dir(torch.Tensor) if re.fullmatch(r"register_.*hook", name)}
    assert {
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_post_accumulate_grad_hook",
    } <= kinds
    assert len(kinds) > 3


@shows("D4.4")
def the_source_uses_the_result() -> None:
    source = inspect.getsource(nn.Module._call_impl)
    assert re.search(r"hook\(self, args, result\)\s+if hook_result is not None:\s+result = hook_result\n", source)

    def wipe(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        args[0].zero_()

    double, mine = Double(), THREE.clone()
    double.register_forward_hook(wipe)
    assert double(mine).item() == 6, "forward has read the input already"
    assert mine.item() == 0


@shows("D4.5")
def stored_under_the_id() -> Found:
    double, ran = Double(), []

    def hook(module: nn.Module, args: object, output: torch.Tensor) -> None:
        ran.append(output.item())

    handle = double.register_forward_hook(hook)
    assert isinstance(double._forward_hooks, dict)
    stored = list(double._forward_hooks.items()) == [(handle.id, hook)]
    double(THREE)
    found = Found(holds=stored and ran == [6], fails=not stored or ran != [6])
    # More than the document's loop: what a hook returns is used.
    double.register_forward_hook(lambda module, args, output: output + 1)
    assert double(THREE).item() == 7
    return found


@shows("D4.6")
def a_loop_walks_along_the_first_axis() -> None:
    turns = []
    double = Double()
    double.register_forward_hook(lambda module, args, output: turns.append(len(list(output))))
    double(torch.ones(1))
    double(torch.ones(4, 2))
    assert turns == [1, 4], "one output each time"

    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x - 1, x + 1

    around = Around()
    around.register_forward_hook(lambda module, args, output: turns.append(len(list(output))))
    around(torch.ones(3))
    assert turns[-1] == 2, "of a tuple it does take the outputs"
    assert as_printed() == [
        "Model()",
        "input val: tensor([1.], requires_grad=True)",
        "output val: tensor(2., grad_fn=<UnbindBackward0>)",
        "tensor([2.], grad_fn=<AddBackward0>)",
    ], "an element of the output, not the output"


def as_printed() -> list[str]:
    """Run the program of the document, `x + 1` with a printing hook; return the lines that it prints."""
    from torch.autograd import Variable

    def for_hook(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        print(module)
        for val in args:
            print("input val:", val)
        for out_val in output:
            print("output val:", out_val)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = Model()
    x = Variable(torch.FloatTensor([1]), requires_grad=True)
    handle = model.register_forward_hook(for_hook)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print(model(x))
    handle.remove()
    return printed.getvalue().splitlines()


@shows("D4.7")
def variable_is_tensor() -> None:
    from torch.autograd import Variable

    assert type(Variable(torch.FloatTensor([3]), requires_grad=True)) is torch.Tensor
    assert not hasattr(torch.functional, "relu")
    assert hasattr(nn.functional, "relu")


@shows("D4.8")
def what_a_legacy_hook_returns_replaces_what_the_node_passes_on() -> Found:
    def ten_times(module: nn.Module, grad_input: object, grad_output: object) -> tuple[torch.Tensor, ...]:
        assert isinstance(grad_input, tuple)
        return tuple(10 * grad for grad in grad_input)

    results = []
    for method in ("register_backward_hook", "register_full_backward_hook"):
        layer, x = doubling(), THREE.clone().requires_grad_()
        with getattr(layer, method)(ten_times), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            layer(x).sum().backward()
        results.append((x.grad.item(), layer.weight.grad.item()))
    assert results == [(20, 30), (20, 3)]
    assert {*history("legacy_hook_returns").values()} == {"20, 30"}, "in each release"
    # "Variable or None", says the document: one Variable is refused.
    layer, x = doubling(), THREE.clone().requires_grad_()
    layer.register_backward_hook(lambda module, grad_input, grad_output: grad_input[0])
    with pytest.raises(TypeError, match="expected tuple, but hook returned 'Tensor'"), pytest.warns(FutureWarning):
        layer(x).sum().backward()
    return Found(holds=results[0][0] == 20, fails=results[0][1] != 3)


shows("D4.9")(d2.a_call_runs_the_hooks_and_a_direct_forward_does_not)
