"""Models that run as copies, in parts or compiled are refused, or edited as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hookscope import NotEditedError, at, census, edit
from tests.shared.networks import resnet18

X = torch.randn(2, 4)


def test_data_parallel_on_several_devices_is_refused_and_on_the_cpu_works() -> None:
    net = nn.DataParallel(nn.Sequential(nn.Linear(4, 4)))
    net.device_ids = []
    with edit(net) as e:
        e.set("module.0", 5.0)
        assert (net.module(X) == 5).all()
        net(X) if not torch.cuda.is_available() else None
    net.device_ids = [0, 1]
    with pytest.raises(ValueError, match=r"runs copies of each layer on 2 devices.*Edit 'module' itself"):
        edit(net)
    e = edit(nn.Sequential(net, nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"Edit '0\.module' itself"):
        e.set("0.module.0", 5.0)
    with pytest.raises(ValueError, match=r"Edit '0\.module' itself"):
        e.set("**", 5.0)
    e.set("1", 5.0)  # what comes after the copies is one layer, with the whole batch
    both = nn.Module()
    both.body = nn.Linear(4, 4)
    both.parallel = nn.DataParallel(both.body)
    both.parallel.device_ids = [0, 1]
    for which in ("body", nn.Linear, both.body):
        with pytest.raises(ValueError, match=r"Edit 'parallel\.module' itself"):
            edit(both).set(which, 5.0)


def test_a_layer_in_a_sharded_part_is_refused_and_others_are_edited() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))

    def edited() -> list[Tensor]:
        x = X.clone().requires_grad_()
        with edit(net) as e:
            e.scale("1", 3.0)
            e.scale("", 0.5, to="grad")
            y = net(x)
            y.sum().backward()
        return [y.detach(), torch.autograd.grad(net(x).sum(), x)[0], x.grad]

    before = edited()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(net[0], mesh=init_device_mesh("cpu", (1,)))
        said = r"sharded \(FSDP\).*Edit the model before you shard it"
        for layer in ("0", "0.1", nn.ReLU):
            with pytest.raises(ValueError, match=f"^'0' is {said}"):
                edit(net).set(layer, 0)
        with pytest.raises(ValueError, match=f"^the model is {said}"):
            edit(net[0])
        assert all(map(torch.equal, edited(), before))
    finally:
        dist.destroy_process_group()
    assert not any("edit" in entry.callable for entry in census(net))


@pytest.mark.parametrize("transform", ["grad", "vmap", "functional_call", "double backward", "inference_mode"])
def test_heads_and_edges_under_transforms(transform: str) -> None:
    torch.manual_seed(0)
    net = nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        q, k, v = nn.functional.linear(x, net.in_proj_weight, net.in_proj_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, 2)).transpose(-2, -3) for part in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / 2**0.5).softmax(-1)
        heads = torch.stack([(weights @ v)[..., 0, :, :], 3 * (weights @ v)[..., 1, :, :]], -2)
        return net.out_proj(heads.flatten(-2))

    def run(x: torch.Tensor) -> torch.Tensor:
        return net(x, x, x, need_weights=False)[0]

    with sdpa_kernel(SDPBackend.MATH), edit(net) as e:
        e.scale("", 3.0, heads=1)
        if transform == "grad":
            found = torch.func.grad(lambda x: run(x).square().sum())(x)
            expected = torch.func.grad(lambda x: by_hand(x).square().sum())(x)
        elif transform == "vmap":
            found, expected = torch.vmap(run)(x[:, None]), by_hand(x)[:, None]
        elif transform == "functional_call":
            doubled = {name: p * 2 for name, p in net.named_parameters()}
            found = torch.func.functional_call(net, doubled, (x, x, x), {"need_weights": False})[0]
            expected = None
        elif transform == "inference_mode":
            with torch.inference_mode():
                found, expected = run(x), by_hand(x)
        else:
            x.requires_grad_()
            assert torch.autograd.gradgradcheck(run, (x[:1, :2].detach().requires_grad_(),))
            found = expected = run(x)
    if expected is None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter *= 2
        expected = by_hand(x)
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet18", "nn.Sequential"])
def test_a_pass_through_code_from_before_the_block_is_an_error_with_the_way_out(kind: str) -> None:
    torch._dynamo.reset()
    if kind == "resnet18":
        net, layer, x = resnet18(), "fc", torch.randn(2, 3, 32, 32)
    else:  # a forward of torch's own is compiled inside of something else
        net, layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "0", X
    compiled = torch.compile(net, backend="eager")

    def run() -> None:
        with edit(net) as e:
            e.scale(layer, 2.0)
            compiled(x)

    with torch.no_grad():
        compiled(x)
        with pytest.raises(NotEditedError, match=r"was not called.* Compiled code ignores new hooks.*eager"):
            run()
        torch._dynamo.reset()  # forgets that anything was compiled
        compiled(x)
        with pytest.raises(NotEditedError, match=r"was not called.* Compiled code ignores new hooks.*eager"):
            run()
        with edit(net) as e:
            e.scale(layer, 2.0)
            net(x)
        with torch.compiler.set_stance("force_eager"), edit(net) as e:
            e.scale(layer, 2.0)
            compiled(x)
        assert e.rows[0]["calls changed"] == 1


def test_a_layer_in_a_compiled_part_is_refused_and_others_are_edited() -> None:
    class Own(nn.Module):  # torch 2.6 compiles nothing of a linear layer alone
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            inner: Tensor = self.inner(x)
            return 2 * inner

    def edited() -> list[Tensor]:
        x = X.clone().requires_grad_()
        with edit(net) as e:
            e.scale("", 3.0, to="input")
            e.add("1", 1.0, at[:, 0])
            e.scale("1", 0.5, to="grad")
            y = net(x)
            y.sum().backward()
        return [y.detach(), x.grad]

    torch._dynamo.reset()
    net = nn.Sequential(Own(), nn.Tanh())
    net.other = net[0].inner
    before = edited()
    net[0].compile(backend="eager")
    for _ in range(2):
        for layer in ("0", "0.inner", "other", nn.Linear, net[0].inner):
            with pytest.raises(ValueError, match=r"^layer '0' is compiled by \.compile\(\)"):
                edit(net).set(layer, 0)
        for mine, right in zip(edited(), before, strict=True):
            torch.testing.assert_close(mine, right)
        torch._dynamo.reset()  # forgets that anything was compiled
    net[0] = torch.compile(net[0], backend="eager")
    net(X)
    with pytest.raises(
        ValueError, match=r"^layer '0' is compiled, so torch can ignore hooks that are added now. Edit the model"
    ):
        edit(net).set("0._orig_mod.inner", 0)
    for mine, right in zip(edited(), before, strict=True):
        torch.testing.assert_close(mine, right)
    whole = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    whole.compile(backend="eager")
    torch._dynamo.reset()
    with pytest.raises(ValueError, match=r"the model is compiled by \.compile\(\)"):
        edit(whole)
