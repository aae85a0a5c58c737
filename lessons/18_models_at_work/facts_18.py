"""What chapter 18 says beyond its cells, run."""

import io
from copy import deepcopy
from functools import partial
from typing import Any
from warnings import catch_warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope_course.figures.travel_map import stations


def test_hooks_in_copies_and_in_other_forms_of_a_model(says):
    says(
        "`deepcopy` does not copy a function:",
        "It does copy an object,",
        "`deepcopy` also copies the dictionary of hooks.",
        "raises an error when you save.",
        "`torch.export` runs the model once and records the tensor operations.",
        "`torch.jit.trace` also records the operations of a hook.",
        "`torch.jit.script` raises an error unless the arguments of the hook have type annotations.",
        "Both are deprecated.",
    )
    model, x, calls, kept = stations.make_net(), torch.tensor([[2.0, 5.0]]), list[int](), list[int]()

    def ten_times(module, args, output):
        calls.append(1)
        return 10 * output

    def typed(self, args: tuple[Tensor], output: Tensor) -> Tensor:
        return 10 * output

    model.get_parameter("0.weight").register_hook(lambda grad: calls.append(2))
    model(x).backward()
    model[0].register_forward_hook(ten_times)
    model[0].register_forward_hook(partial(lambda notes, *_: notes.append(1), kept))
    twin = deepcopy(model)
    assert twin.get_parameter("0.weight").grad is None
    calls.clear()
    twin(x).backward()
    assert (calls, kept) == ([1], []), "the hook of the weight stays behind, and the list in partial is copied"
    with pytest.raises(AttributeError):
        torch.save(model, io.BytesIO())
    model = stations.make_net()
    with model[0].register_forward_hook(ten_times), catch_warnings(action="ignore"):
        calls.clear()
        exported: Any = torch.export.export(model, (x,))
        assert (exported.module()(x).item(), len(calls)) == (60, 1)
        with pytest.raises(RuntimeError, match="expected the input argument to be typed"):
            torch.jit.script(model)
        traced = torch.jit.trace(model, (x,))
    with model[0].register_forward_hook(typed), catch_warnings(action="ignore"):
        scripted: Any = torch.jit.script(model)
    assert (traced(x).item(), scripted(x).item(), model(x).item()) == (60, 60, 6)
    fast: Any = torch.compile(model, backend="eager")
    fast(x)
    with model[0].register_forward_hook(ten_times):
        calls.clear()
        assert (fast(x).item(), len(calls), model(x).item()) == (6, 0, 60)


@pytest.mark.parametrize(("before", "after", "found"), [((1,), (5, 1), [1, 0]), ((1, 5), (7,), [0])])
def test_another_batch_size_compiles_again(says, before: Any, after: Any, found: list[int]):
    says("The first batch of a different size makes torch compile again, and this time it includes your hook.")
    torch.compiler.reset()
    model, x, calls = stations.make_net(), torch.ones(1, 2), list[int]()
    fast = torch.compile(model, backend="eager")
    assert [len(fast(x.repeat(rows, 1))) for rows in before] == [*before]
    model[0].register_forward_hook(lambda *_: calls.append(1))
    for rows, count in zip(after, found, strict=True):
        calls.clear()
        fast(x.repeat(rows, 1))
        assert len(calls) == count
    torch.compiler.reset()


def test_late_hooks_on_a_compiled_net(says):
    says(
        "To save time, they do not look for hooks on a module that had none.",
        "A hook on `fast` itself runs as Python, around the compiled code.",
    )
    fired = list[str]()
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager")
    compiled(torch.ones(1, 2))
    net[0].register_forward_hook(lambda *_: fired.append("a layer inside"))
    compiled.register_forward_hook(lambda *_: fired.append("what compile returned"))
    net.register_forward_hook(lambda *_: fired.append("the original"))
    net[0].weight.register_hook(lambda grad: fired.append("a weight"))
    compiled(torch.ones(1, 2)).sum().backward()
    assert fired == ["what compile returned", "a weight"], "and none on the original"
    torch.compiler.reset()


def two_layers() -> nn.Sequential:
    """2 · 3 = 6."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.get_parameter("0.weight"), 2.0)
    nn.init.constant_(net.get_parameter("1.weight"), 3.0)
    return net


@pytest.mark.parametrize(("reentrant", "again"), [(True, ["0", "1"]), (False, ["0"])])
def test_a_checkpoint_runs_layers_again_in_the_backward_pass(says, reentrant: bool, again: list[str]):
    says(
        "so it runs layers again, together with their hooks.",
        "With `use_reentrant=False`, it stops when it has all the outputs that it needs. So a forward hook on the last "
        "layer is called only once.",
    )
    net, fired = two_layers(), list[str]()
    for name, layer in net.named_children():
        layer.register_forward_hook(lambda module, args, output, name=name: fired.append(name))
    output = checkpoint(net, torch.ones(1, 1, requires_grad=True), use_reentrant=reentrant)
    assert fired == ["0", "1"]
    output.sum().backward()
    assert fired[2:] == again


@pytest.mark.parametrize(("too_early", "gradient"), [(False, 20), (True, 2)])
def test_a_hook_that_changes_a_checkpoint_must_stay_until_backward_is_over(says, too_early: bool, gradient: int):
    says(
        "If a hook changes the output, keep it registered until `backward()` has finished.",
        "If you remove it earlier, the gradient is often wrong, but you get no error.",
    )
    net = two_layers()
    handle = net[0].register_forward_hook(lambda module, args, output: 10 * output)
    output = checkpoint(net, torch.ones(1, 1, requires_grad=True), use_reentrant=False)
    if too_early:
        handle.remove()
    output.sum().backward()
    grad = net.get_parameter("1.weight").grad
    assert grad is not None
    assert grad.item() == gradient


def test_vmap_runs_once_and_autocast_rounds(says):
    says(
        "Your hook fires once and gets the shape of a single row.",
        "Under `torch.autocast`, a Linear or a convolution returns half precision, so your hook gets rounded numbers.",
    )
    net, seen = two_layers(), list[tuple[tuple[int, ...], torch.dtype]]()
    net[0].register_forward_hook(lambda module, args, output: seen.append((tuple(output.shape), output.dtype)))
    torch.func.vmap(net)(torch.ones(5, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.ones(5, 1))
    assert seen == [((1,), torch.float32), ((5, 1), torch.bfloat16)]


def test_a_hook_sees_scaled_gradients(says):
    says("so it gets the scaled gradients. Divide them by `scaler.get_scale()`.")
    net, scaler, seen = two_layers(), torch.amp.GradScaler("cpu", init_scale=1024.0), list[Tensor]()
    net[1].register_full_backward_pre_hook(lambda module, grad_output: seen.extend(grad_output))
    scaler.scale(net(torch.ones(1, 1)).sum()).backward()
    assert [grad.item() / scaler.get_scale() for grad in seen] == [1]


def test_a_quantized_layer_has_forward_hooks_only(says):
    says(
        "`quantize_dynamic` gives the new layer the forward hooks and the forward pre-hooks of the old one.",
        "Backward hooks are lost.",
        "The setting `with_kwargs=True` is lost as well, so a hook that takes `kwargs` raises a `TypeError`.",
    )
    layer, called = nn.Linear(2, 3), list[str]()
    layer.register_forward_hook(lambda *_: called.append("forward"))
    layer.register_full_backward_hook(lambda *_: called.append("backward"))
    with catch_warnings(action="ignore"):
        made = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear})
    made(torch.ones(1, 2))
    assert called == ["forward"]
    assert len(made[0]._forward_hooks) == 1
    assert not made[0]._backward_hooks
    layer.register_forward_hook(lambda module, args, kwargs, output: None, with_kwargs=True)
    with catch_warnings(action="ignore"):
        made = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear})
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        made(torch.ones(1, 2))
