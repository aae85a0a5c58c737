"""What a chapter says in words alone, because it needs machines that most have not, is run here as far as it can be."""

from __future__ import annotations

from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
from torch import nn

from hookscope import samples
from lessons.build import reading


def test_what_chapter_16_says_of_dataparallel() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("16_")).read_text()
    assert "**DataParallel**" in text
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


def test_what_chapter_17_says_of_nn_rnn() -> None:
    rnn, fired = nn.RNN(3, 4, batch_first=True), list[nn.Module]()
    assert [*rnn.children()] == []
    with rnn.register_full_backward_pre_hook(lambda module, grads: fired.append(module)):
        rnn(torch.randn(2, 5, 3))[0][:, -1].sum().backward()
    assert fired == [rnn]


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


def test_what_chapter_17_says_of_in_place_layers() -> None:
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 2))
    frozen.requires_grad_(False)
    kept = list[torch.Tensor]()

    def asks(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.requires_grad_())
        return output.clone()

    with frozen[0].register_forward_hook(asks):
        score = frozen(torch.rand(1, 1, 4, 4))[0, 0]
    (grad,) = torch.autograd.grad(score, kept)
    assert grad.shape == (1, 2, 2, 2)

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
    import torch.distributed as dist
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
            model(torch.randn(1, 3, 8))
        return counter.get_total_flops()

    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert flops(encoder.eval()) == 0
    assert flops(encoder.train()) > 0
    assert flops(nn.LSTM(8, 4)) == 0
    assert flops(nn.Linear(8, 4)) == 2 * 3 * 8 * 4


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


def test_what_chapter_18_says_of_scripted_backward_hooks() -> None:
    relu, fired = nn.ReLU(), list[str]()
    relu.register_full_backward_hook(lambda *_: fired.append("backward"))
    with catch_warnings(record=True) as said:
        simplefilter("always")
        scripted = torch.jit.script(relu)
    assert {each.category for each in said} <= {DeprecationWarning, FutureWarning}, "not a word about the hook"
    scripted(torch.ones(1, requires_grad=True)).sum().backward()
    assert fired == []


def test_what_chapter_00_says_of_dead_channels() -> None:
    net = samples.digit_cnn()
    kept = list[torch.Tensor]()
    net.block3.register_forward_hook(lambda module, args, output: kept.append(output))
    net(torch.cat([samples.digit(number) for number in range(10)]))
    assert int((kept[0] == 0).all(3).all(2).all(0).sum()) == 3


def test_what_chapter_02_says_of_inputs_that_are_not_passed_by_position() -> None:
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
