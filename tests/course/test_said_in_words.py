"""What a chapter says in words alone, because it needs machines that most have not, is run here as far as it can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hookscope import capture, profile, record, samples
from hookscope_course import ranks
from lessons.build import reading
from tests.shared import ROOT

# As from a notebook: the ranks get the functions themselves, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """Two ranks."""
    if not hasattr(os, "fork"):
        pytest.skip("`ranks` forks")
    with ranks.start(2) as group:
        yield group


def test_what_chapter_16_says_of_dataparallel() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("16_")).read_text()
    assert "*DataParallel* calls a copy of your module on" in " ".join(text.split())
    layer, seen = nn.Linear(2, 2), list[nn.Module]()

    def keep_on_module(module: Any, args: object, output: torch.Tensor) -> None:
        module.kept = output
        seen.append(module)

    layer.register_forward_hook(keep_on_module)
    copies = []
    for _ in range(2):  # what nn.DataParallel calls for each of its GPUs
        copy = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copy.weight, copy.bias = layer.weight, layer.bias
        copy(torch.ones(1, 2))
        copies.append(copy)
    assert seen == copies, "it fires for each of them"
    assert all(hasattr(copy, "kept") for copy in copies)
    assert not hasattr(layer, "kept"), "and what it keeps on the module is lost with the copy"


def test_what_chapter_17_says_of_a_mean_loss_and_of_two_calls() -> None:
    layer, x = nn.Linear(3, 3).double(), torch.randn(4, 3, dtype=torch.float64)
    came, went = list[torch.Tensor](), list[torch.Tensor]()

    def keep_grad(module: nn.Module, grad_output: Any) -> None:
        went.insert(0, grad_output[0])

    with (
        layer.register_forward_hook(lambda module, args, output: came.append(args[0].detach())),
        layer.register_full_backward_pre_hook(keep_grad),
    ):
        layer(layer(x).tanh()).square().sum(1).mean().backward()
    rows = sum(torch.einsum("no,ni->noi", grad, given) for grad, given in zip(went, came, strict=True))
    assert torch.allclose(rows.sum(0), layer.weight.grad)  # type: ignore[union-attr, arg-type]
    for row, sample in zip(rows, x, strict=True):  # type: ignore[arg-type]
        own = layer(layer(sample).tanh()).square().sum()
        assert torch.allclose(len(x) * row, torch.autograd.grad(own, layer.weight)[0])


def test_what_chapter_17_says_of_no_grad_in_a_hook() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    y = x * x

    def without_graph(grad: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return 2 * grad

    with y.register_hook(without_graph):  # type: ignore[no-untyped-call]
        (first,) = torch.autograd.grad(y * y, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (8, 8)


@pytest.mark.parametrize(
    ("place", "kind", "second"),
    [
        (0, "full_backward_pre_hook", 40),
        (0, "full_backward_hook", 48),
        (1, "full_backward_pre_hook", 24),
        (1, "full_backward_hook", 24),
    ],
)
def test_what_chapter_17_says_of_module_hooks_in_a_second_pass(place: int, kind: str, second: int) -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    two, fired = nn.Sequential(Square(), Square()), list[nn.Module]()

    def hook(module: nn.Module, *grads: Any) -> tuple[torch.Tensor]:
        fired.append(module)
        return (2 * grads[0][0],)

    x = torch.tensor(1.0, requires_grad=True)
    with getattr(two[place], f"register_{kind}")(hook):
        (first,) = torch.autograd.grad(two(x), x, create_graph=True)
        (found,) = torch.autograd.grad(first, x)
    assert (first.item(), found.item(), len(fired)) == (8, second, 2 - place)


def test_what_chapter_17_says_of_a_hook_on_x() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    with x.register_hook(lambda grad: 2 * grad):  # type: ignore[no-untyped-call]
        (first,) = torch.autograd.grad(x**4, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (8, 48)


def ends_of(layer: nn.Module, loss: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes into a layer, and the gradient of what comes out, as the chapter has it."""
    kept: list[torch.Tensor] = []
    with (
        layer.register_forward_hook(lambda module, args, output: kept.append(args[0].detach())),
        layer.register_full_backward_pre_hook(lambda module, grads: kept.append(grads[0])),
    ):
        loss().backward()
    x, grad = kept
    return x, grad


def test_what_chapter_17_says_of_sequences_and_convolutions() -> None:
    linear, steps = nn.Linear(3, 2).double(), torch.randn(4, 7, 3, dtype=torch.float64)
    x, grad = ends_of(linear, lambda: linear(steps).square().sum())
    parts = torch.einsum("nto,nti->noi", grad, x)
    for part, sample in zip(parts, steps, strict=True):
        assert torch.allclose(part, torch.autograd.grad(linear(sample).square().sum(), linear.weight)[0])

    conv, images = nn.Conv2d(2, 3, 3, 2, 1).double(), torch.randn(4, 2, 6, 5, dtype=torch.float64)
    x, grad = ends_of(conv, lambda: conv(images).square().sum())
    rows = nn.functional.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride)  # type: ignore[arg-type]
    parts = torch.einsum("nol,nil->noi", grad.flatten(2), rows).view(4, *conv.weight.shape)
    for part, image in zip(parts, images, strict=True):
        assert torch.allclose(part, torch.autograd.grad(conv(image[None]).square().sum(), conv.weight)[0])


def test_what_chapter_17_says_of_batch_norm() -> None:
    net, batch = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double(), torch.randn(5, 3).double()
    linear: Any = net[0]
    for training in (True, False):
        net.train(training).zero_grad()
        x, grad = ends_of(linear, lambda: net(batch).square().sum())
        parts = torch.einsum("no,ni->noi", grad, x)
        assert torch.allclose(parts.sum(0), linear.weight.grad)
        own = [torch.autograd.grad(net(batch)[n].square().sum(), linear.weight)[0] for n in range(5)]
        right = [torch.allclose(part, wanted) for part, wanted in zip(parts, own, strict=True)]
        assert right == [not training] * 5


def test_what_chapter_17_says_of_torch_func() -> None:
    layer, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)

    def loss(weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (sample,))
        return output.square().sum()

    given, grad = ends_of(layer, lambda: layer(x).square().sum())
    parts = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(layer.weight.detach(), x)
    assert torch.allclose(parts, torch.einsum("no,ni->noi", grad, given))


def test_what_chapter_08_says_of_a_view_behind_a_module() -> None:
    def only_positive(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[torch.Tensor]:
        return (grad_input[0].clamp(min=0),)

    layer, relu, x = nn.Linear(2, 2), nn.ReLU(inplace=True), torch.ones(1, 2)
    with relu.register_full_backward_hook(only_positive):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            relu(layer(x))
        relu.inplace = False
        relu(layer(x)).sum().backward()


def test_what_chapter_14_says_of_the_fused_encoder() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    called = list[nn.Module]()

    def children_called(grads: bool = False, **kinds: Any) -> int:
        """Run it with hooks that do nothing on its first Linear, and count the children that were called."""
        called.clear()
        anywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
        handles = [getattr(encoder.linear1, kind)(hook) for kind, hook in kinds.items()]
        with torch.set_grad_enabled(grads):
            encoder(x)
        for handle in [anywhere, *handles]:
            handle.remove()
        return len({*called} - {encoder})

    every = len([module for module in encoder.modules() if module not in (encoder, encoder.self_attn.out_proj)])
    assert children_called() == 0
    assert children_called(register_forward_hook=lambda *_: None) == every
    assert children_called(register_forward_pre_hook=lambda *_: None) == every
    assert children_called(grads=True) == every
    encoder.train()
    assert children_called() == every
    encoder.eval().self_attn.batch_first = False
    assert children_called() == every


def test_what_chapter_16_says_of_a_reentrant_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    def loss(asked: bool, reentrant: bool) -> torch.Tensor:
        embedding, adapter = nn.Embedding(4, 3).requires_grad_(False), nn.Linear(3, 3)
        handle = embedding.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
        if not asked:
            handle.remove()
        with catch_warnings(action="ignore"):
            made: Any = checkpoint(adapter, embedding(torch.tensor([1, 2])), use_reentrant=reentrant)
        return made.sum()

    loss(asked=True, reentrant=True).backward()
    loss(asked=False, reentrant=False).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss(asked=False, reentrant=True).backward()


def test_what_chapter_16_says_of_fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    whole = dict[str, bool]()

    def note_as(name: str) -> Any:
        def note(module: Any, args: object, output: object) -> None:
            whole[name] = not isinstance(module.weight, DTensor)

        return note

    net[0].register_forward_hook(note_as("inner, before"))
    net[1].register_forward_hook(note_as("outermost's own, before"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
        net[0].register_forward_hook(note_as("inner, later"))
        net[1].register_forward_hook(note_as("outermost's own, later"))
        net(torch.randn(2, 4))
    finally:
        dist.destroy_process_group()
    assert whole == {
        "inner, before": True,
        "inner, later": False,
        "outermost's own, before": True,
        "outermost's own, later": True,
    }


def test_what_chapter_18_says_of_fused_operations_and_flops() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def flops(model: nn.Module) -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.randn(1, 3, 8, dtype=next(model.parameters()).dtype))
        return counter.get_total_flops()

    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert flops(encoder.eval()) == 0
    assert flops(encoder.train()) > 0
    assert flops(nn.LSTM(8, 4)) == 0, "in float32"
    assert flops(nn.LSTM(8, 4).double()) > 0
    assert flops(nn.Linear(8, 4)) == 2 * 3 * 8 * 4
    with torch.no_grad():
        for fused in (nn.LSTM(8, 4), encoder.eval()):
            assert profile(fused, torch.randn(1, 3, 8), repeats=1)[""].flops


def test_what_chapter_18_says_of_hooks_on_a_quantized_model() -> None:
    layer, called = nn.Linear(2, 3), list[str]()
    layer.register_forward_hook(lambda *_: called.append("forward"))
    layer.register_full_backward_hook(lambda *_: called.append("backward"))
    with catch_warnings(action="ignore"):
        made = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear})  # type: ignore[no-untyped-call]
    made(torch.ones(1, 2))
    assert called == ["forward"]
    assert len(made[0]._forward_hooks) == 1
    assert not made[0]._backward_hooks
    layer.register_forward_hook(lambda module, args, kwargs, output: None, with_kwargs=True)
    with catch_warnings(action="ignore"):
        made = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear})  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        made(torch.ones(1, 2))


def test_what_chapter_00_says_of_dead_channels() -> None:
    net = samples.digit_cnn()
    kept = list[torch.Tensor]()
    net.block3.register_forward_hook(lambda module, args, output: kept.append(output))
    net(torch.cat([samples.digit(number) for number in range(10)]))
    assert int((kept[0] == 0).all(3).all(2).all(0).sum()) == 3


def test_what_chapter_08_says_of_inputs_that_are_not_passed_by_position() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("08_")).read_text()
    assert "With `module(x=x)` or `module([x])`, the hook does not wait." in text

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, x: Any) -> torch.Tensor:
            return self.inner(x[0] if isinstance(x, list) else x)  # type: ignore[no-any-return]

    def order(call: Any) -> list[str]:
        module, fired = Named(), list[str]()
        module.register_full_backward_hook(lambda *_: fired.append("outer"))
        module.inner.register_full_backward_hook(lambda *_: fired.append("inner"))
        with catch_warnings(action="ignore"):
            call(module, torch.ones(1, 1, requires_grad=True)).sum().backward()
        return fired

    assert order(lambda module, x: module(x)) == ["inner", "outer"]
    assert order(lambda module, x: module(x=x)) == ["outer", "inner"]
    assert order(lambda module, x: module([x])) == ["outer", "inner"]


def test_what_chapter_08_says_of_an_input_whose_gradient_is_not_asked_for() -> None:
    nest, fired = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1)), list[str]()
    nest.register_full_backward_hook(lambda *_: fired.append("root"))
    x = torch.ones(1, 1, requires_grad=True)
    torch.autograd.grad(nest(x).sum(), [nest[1].weight])
    assert fired == [], "it waits for what never comes"
    nest(x).sum().backward()
    assert fired == ["root"]


def test_what_chapter_08_says_of_a_bare_tensor() -> None:
    def pre(module: nn.Module, grad_output: Any) -> Any:
        return 2 * grad_output[0]

    def full(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return 2 * grad_input[0]

    for shape in ((), (1,), (3,), (1, 1), (1, 3), (3, 1)):
        relu, x = nn.ReLU(), torch.ones(shape, requires_grad=True)
        for register, hook in (
            (relu.register_full_backward_pre_hook, pre),
            (relu.register_full_backward_hook, full),
        ):
            with register(hook), pytest.raises((RuntimeError, TypeError)):  # type: ignore[operator]
                relu(x).sum().backward()


def test_what_chapter_08_says_of_zeros_in_grad_input() -> None:
    class Product(nn.Module):
        def forward(self, x1: Any, x2: Any) -> torch.Tensor:
            return 5 * x1 * x2  # type: ignore[no-any-return]

    product, got = Product(), list[Any]()
    product.register_full_backward_hook(lambda module, given, arrives: got.append(given))
    x1 = torch.tensor([2.0], requires_grad=True)
    product(x1, torch.tensor([3.0])).backward()
    product(x1, 3.0).backward()
    assert got == [(torch.tensor([15.0]), torch.tensor([0.0])), (torch.tensor([15.0]), None)]


def test_what_chapter_08_says_of_a_view_and_of_the_workaround() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("08_")).read_text()
    layer, x, relu = nn.Linear(1, 1), torch.ones(1, 1), nn.ReLU(inplace=True)
    with layer.register_full_backward_hook(lambda *_: None):
        for write in (relu, lambda out: out.add_(1)):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace") as caught:
                write(layer(x))
    assert str(caught.value).partition(". ")[0] in text
    seen = list[torch.Tensor]()
    with layer.register_forward_hook(lambda module, args, output: output.register_hook(seen.append) and None):
        relu(layer(x)).sum().backward()
    lstm = nn.LSTM(1, 1, batch_first=True)
    with lstm.register_forward_hook(lambda module, args, output: output[1][0].register_hook(seen.append) and None):
        lstm(torch.ones(1, 2, 1))[1][0].sum().backward()
    assert len(seen) == 2


def test_what_chapter_08_says_of_the_pre_hook_where_the_hook_does_not_fire() -> None:
    class Returns(nn.Module):
        def __init__(self, form: Any) -> None:
            super().__init__()
            self.form = form

        def forward(self, x: torch.Tensor) -> Any:
            return self.form(2 * x)

    fired = list[nn.Module]()
    for module, pick, fires in (
        (Returns(lambda y: y), lambda result: result, True),
        (Returns(lambda y: (y, y + 1)), lambda result: result[0], True),
        (Returns(lambda y: [y, y + 1]), lambda result: result[0], False),
        (Returns(lambda y: {"y": y}), lambda result: result["y"], False),
        (nn.LSTM(1, 1), lambda result: result[0], True),
        (nn.LSTM(1, 1), lambda result: result[1][0], False),
    ):
        fired.clear()
        module.register_full_backward_pre_hook(lambda module, grads: fired.append(module))
        with catch_warnings(action="ignore"):
            pick(module(torch.ones(2, 1, requires_grad=True))).sum().backward()
        assert bool(fired) == fires


def test_what_chapter_08_says_of_weight_grad_in_a_hook_of_the_layer() -> None:
    def seen_in(calls: int, plain: bool) -> list[bool]:
        layer, there = nn.Linear(1, 1, bias=False), list[bool]()
        layer.register_full_backward_hook(lambda module, *_: there.append(module.weight.grad is not None))
        y = torch.ones(1, 1, requires_grad=not plain)
        with catch_warnings(action="ignore"):
            for _ in range(calls):
                y = layer(y)
            y.backward()
        return there

    assert seen_in(1, plain=False) == [True]
    assert seen_in(2, plain=False) == [False, True]
    assert seen_in(1, plain=True) == [False]


def test_a_named_tuple_as_the_result_of_a_module_with_a_backward_hook_raises() -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.max(x, 0)

    layer, x = Largest(), torch.randn(3, 2, requires_grad=True)
    handle = layer.register_full_backward_hook(lambda *_: None)
    with pytest.raises(TypeError):
        layer(x)
    handle.remove()
    layer(x).values.sum().backward()


def test_what_the_ledger_says_of_writing_into_grad_output() -> None:
    def gradient(x: torch.Tensor, factor: float) -> torch.Tensor:
        layer = nn.Linear(2, 1, bias=False)
        layer.register_full_backward_hook(lambda module, given, arrives: arrives[0].mul_(factor) and None)
        with catch_warnings(action="ignore"):
            layer(x).sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad

    assert torch.equal(gradient(torch.ones(1, 2), 10), torch.full((1, 2), 10.0)), "where no input requires grad"
    assert torch.equal(gradient(torch.ones(1, 2, requires_grad=True), 10), torch.ones(1, 2)), "else it is too late"


def test_what_chapter_11_says_of_late_hooks_on_a_compiled_net() -> None:
    fired = list[str]()
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager")
    compiled(torch.ones(1, 2))
    net[0].register_forward_hook(lambda *_: fired.append("a layer inside"))
    compiled.register_forward_hook(lambda *_: fired.append("what compile returned"))  # type: ignore[attr-defined]
    net[0].weight.register_hook(lambda grad: fired.append("a weight"))  # type: ignore[no-untyped-call]
    compiled(torch.ones(1, 2)).sum().backward()
    assert fired == ["what compile returned", "a weight"]
    torch.compiler.reset()


def test_what_chapter_11_says_of_a_watching_hook_under_a_checkpoint() -> None:
    from torch.utils.checkpoint import CheckpointError, checkpoint

    def run(detached: bool) -> None:
        net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        kept = list[torch.Tensor]()

        def watch(module: nn.Module, args: object, output: torch.Tensor) -> None:
            kept.append(((output.detach() if detached else output) ** 2).sum())

        handle = net[0].register_forward_hook(watch)
        output: Any = checkpoint(net, torch.ones(1, 2), use_reentrant=False)
        handle.remove()
        output.sum().backward()

    run(detached=True)
    with pytest.raises(CheckpointError):
        run(detached=False)


def _means_of(rank: int, before: str, looked_at: str) -> float:
    """On a rank: the running mean that the pass that is looked at begins with, of rank 0 or its own: 7 times the rank.

    Args:
        rank: this one.
        before: how the pass before it runs: with "grad", in "no_sync", under "no_grad" or "inference_mode".
        looked_at: how it runs itself; "eval" is a pass with gradients in eval().

    """
    ddp = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(1))
    around = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "no_sync": ddp.no_sync}
    x = torch.full((2, 1), float(rank))
    ddp(x).sum().backward()
    for how in (before, looked_at):
        ddp.train(how != "eval")
        ddp.module.running_mean.fill_(7.0 * rank)
        seen = list[float]()
        look = ddp.module.register_forward_pre_hook(lambda m, args, seen=seen: seen.append(m.running_mean.item()))
        with around.get(how, nullcontext)():
            y = ddp(x).sum()
        if y.requires_grad:
            y.backward()
        look.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("before", "looked_at", "own"),
    [
        ("grad", "grad", 0),
        ("grad", "eval", 0),
        ("grad", "no_grad", 0),
        ("grad", "no_sync", 0),
        ("no_sync", "grad", 7),
        ("no_grad", "grad", 7),
        ("no_grad", "no_grad", 7),
        ("inference_mode", "grad", 7),
    ],
)
def test_what_chapter_13_says_of_buffers(two: Any, before: str, looked_at: str, own: float) -> None:
    def on_each() -> float:
        return _means_of(dist.get_rank(), before, looked_at)

    assert two.run(on_each) == [0, own]


def test_what_chapter_13_says_of_a_validation_on_rank_0_only(two: Any) -> None:
    def train_validate_train() -> float:
        ddp, x = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(1)), torch.ones(2, 1)
        ddp(x).sum().backward()
        if dist.get_rank() == 0:
            with torch.no_grad():
                ddp.module(x)  # with `ddp(x)`, a process ends in the next pass
        ddp(x).sum().backward()
        return float(ddp.module.running_mean)

    first, second = two.run(train_validate_train)
    assert first == second


def test_what_chapter_13_says_of_a_wrapper_that_nobody_keeps(two: Any) -> None:
    def gradient() -> float:
        layer, x = nn.Linear(1, 1), torch.full((1, 1), 2.0 + 2 * dist.get_rank())
        nn.parallel.DistributedDataParallel(layer)(x).sum().backward()
        return layer.weight.grad.item()  # type: ignore[union-attr]

    assert two.run(gradient) == [2, 4]


def test_what_chapter_13_says_of_fsdp2(two: Any) -> None:
    def step_in_hook() -> tuple[float, list[str]]:
        from torch.distributed.fsdp import fully_shard

        layer, fired = nn.Linear(1, 2, bias=False), list[str]()
        nn.init.constant_(layer.weight, 5.0)
        layer.weight.register_post_accumulate_grad_hook(lambda weight: fired.append("on the old weight"))
        fully_shard(layer)

        def step(weight: Any) -> None:
            fired.append("post-accumulate hook")
            with torch.no_grad():
                weight -= 0.1 * weight.grad

        layer.weight.register_hook(lambda grad: fired.append("tensor hook"))  # type: ignore[no-untyped-call]
        layer.weight.register_post_accumulate_grad_hook(step)
        layer(torch.full((1, 1), 2.0 + 2 * dist.get_rank())).sum().backward()
        return round(layer.weight.full_tensor()[0].item(), 4), fired  # type: ignore[operator, attr-defined]

    first, second = two.run(step_in_hook)
    assert first == second, "what it finds was reduced over the ranks"
    assert first[0] in (4.7, 4.4), "the mean; before torch 2.9 the sum, with gloo"
    assert first[1] == ["post-accumulate hook"]


def test_what_chapter_13_says_of_shapes_that_differ(two: Any) -> None:
    def gather() -> list[Any]:
        mine = torch.arange(6).reshape((2, 3) if dist.get_rank() == 0 else (3, 2)) + 10 * dist.get_rank()
        both = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(both, mine)
        return [each.tolist() for each in both]

    first, second = two.run(gather)
    assert first == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]
    assert second == [[[0, 1], [2, 3], [4, 5]], [[10, 11], [12, 13], [14, 15]]]


def test_what_the_docs_say_of_results_with_hooks() -> None:
    """The exceptions from "bit for bit the same", of which only one is a matter of rounding."""
    said = " ".join((ROOT / "docs" / "side_effects.md").read_text(encoding="utf-8").split())
    exceptions = (
        "padding gets numbers instead of NaN",
        "the same tensor twice",
        "in a different order",
        "instead of `None`",
    )
    assert all(exception in said for exception in exceptions)

    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    padded, x = torch.tensor([[False] * 6, [True] * 6]), torch.randn(2, 6, 32)
    with torch.no_grad(), catch_warnings():
        simplefilter("ignore")
        assert encoder(x, src_key_padding_mask=padded)[1].isnan().all()
        with capture(encoder):
            assert not encoder(x, src_key_padding_mask=padded)[1].isnan().any()

    class Same(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return 2 * q if q is k else 3 * q

    class First(nn.Module):
        def forward(self, a: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return 2 * a

    same, first, one = Same(), First(), torch.ones(1, requires_grad=True)
    unused, watched = (torch.ones(1, requires_grad=True) for _ in range(2))
    assert same(one, one) == 2
    first(one, unused).backward()
    assert unused.grad is None
    with record(nn.ModuleList([same, first])):
        assert same(one, one) == 3
        first(one, watched).backward()
    assert watched.grad == 0
    with record(same, kinds=("forward_pre", "forward")):
        assert same(one, one) == 2


def test_what_the_docs_say_of_the_trained_networks() -> None:
    weights = [
        path for path in Path(samples.__file__).parent.glob("*.safetensors") if path.stem.endswith(("cnn", "lm"))
    ]
    assert len(weights) == 3
    assert "three small trained networks" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def test_what_chapter_11_says_of_what_capture_keeps() -> None:
    """What was captured is right although a later layer overwrites it, and that is said."""
    pair = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    nn.init.constant_(pair[0].weight, -2.0)
    nn.init.zeros_(pair[0].bias)
    with torch.no_grad(), capture(pair, "0") as seen:
        pair(torch.ones(1, 1))
    assert seen["0"].output.item() == -2
    assert seen.overwritten
