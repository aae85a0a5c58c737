"""Models that overwrite what a layer returned, in every way there is."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.shared.awkward_models.building import Do, Doubling, Net, Own, Result, model, silently


@torch.jit.script
def scripted_relu_(y: Tensor) -> Tensor:
    """Overwrite from TorchScript."""
    return y.relu_()


def in_another_thread(function: Callable[[], Any]) -> None:
    """Run `function` in a thread of its own, under this thread's grad mode."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def work() -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            function()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _assign(y: Tensor, index: Any, value: Any) -> None:
    y[index] = value


def _without_grad(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    return torch.no_grad()(function)


def _refill(y: Tensor) -> None:
    saved = y.detach().clone()
    y.untyped_storage().resize_(0)  # as FSDP frees parameters
    y.untyped_storage().resize_(saved.untyped_storage().nbytes())
    y.detach().copy_(saved * 2)


OVERWRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda y: y.mul_(2),
    "zero_": lambda y: y.zero_(),
    "F.relu_": F.relu_,
    "F.relu in place": lambda y: F.relu(y, inplace=True),
    "F.dropout in place": lambda y: F.dropout(y, 0.5, True, True),
    "normal_": lambda y: y.detach().normal_(),
    "copy_": lambda y: y.copy_(torch.arange(8.0).view(2, 4)),
    "a column": lambda y: _assign(y, (slice(None), 0), 0),
    "a mask": lambda y: _assign(y, y > 0, -1),
    "index_put_": lambda y: y.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(5.0)),
    "index_add_": lambda y: y.index_add_(0, torch.tensor([1]), torch.ones(1, 4)),
    "scatter_": lambda y: y.scatter_(1, torch.tensor([[0], [2]]), 7.0),
    "masked_fill_": lambda y: y.masked_fill_(y > 0, 3),
    "transpose, then relu_": lambda y: y.t().relu_(),
    "view of a view": lambda y: y.view(-1)[1:].view(-1)[::2].neg_(),
    "chunk": _without_grad(lambda y: y.chunk(2, 1)[1].add_(1)),
    "as_strided": lambda y: y.as_strided((2,), (3,)).add_(1),
    "detach, then add_": lambda y: y.detach().add_(1),
    "out=": lambda y: torch.add(y.detach(), 1, out=y.detach()),
    "out= of a view": lambda y: torch.neg(y.detach()[0], out=y.detach()[1]),
    "out= of two": lambda y: torch.sort(torch.rand(2, 4), out=(y.detach(), torch.empty(2, 4, dtype=torch.long))),
    ".data": lambda y: y.data.mul_(2),
    ".data, a view": lambda y: y.data[0].mul_(2),
    ".data set": lambda y: setattr(y, "data", torch.zeros(2, 4)),
    "set_": _without_grad(lambda y: y.set_(torch.zeros(2, 4))),
    "foreach": lambda y: torch._foreach_mul_([y.detach()], 2),
    "numpy": lambda y: y.detach().numpy().fill(3),
    "dlpack": lambda y: torch.from_dlpack(y.detach()).zero_(),
    "storage": lambda y: y.untyped_storage().fill_(0),
    "autograd.Function": lambda y: Doubling.apply(y),
    "TorchScript": scripted_relu_,
    "another thread": lambda y: in_another_thread(lambda: y.mul_(2)),
    "nn.init": lambda y: nn.init.ones_(y.detach()),
    "batch norm's running mean": lambda y: F.batch_norm(torch.rand(3, 4), y.detach()[0], torch.ones(4), training=True),
    "share_memory_": lambda y: y.detach().share_memory_().add_(1),
    "ctypes": lambda y: ctypes.memset(y.data_ptr(), 0, 16),
    "storage copy_": lambda y: y.untyped_storage().copy_(torch.ones(8).untyped_storage()),
    "storage freed and filled again": _refill,
    "embedding's max_norm": lambda y: F.embedding(torch.tensor([0]), y.detach(), max_norm=0.1),
    "unsqueeze_": _without_grad(lambda y: y.unsqueeze_(0)),
    "transpose_": _without_grad(lambda y: y.transpose_(0, 1).add_(1).transpose_(0, 1)),
    "detach_": lambda y: y.detach_(),
    "twice": lambda y: y.add_(1).mul_(2),
}


def _overwriting(name: str, overwrite: Callable[[Tensor], Any]) -> None:
    @model(f"overwritten by {name}")
    def _() -> Any:
        def run(self: nn.Module, x: Tensor) -> Tensor:
            y = self.a(x)
            overwrite(y)
            return self.b(y)

        return Net(run, a=Do(lambda x: x + 1), b=nn.Linear(4, 3))

    if name == "detach_":  # torch refuses it for views
        return

    @model(f"a view overwritten by {name}")
    def _() -> Any:
        def run(self: nn.Module, x: Tensor) -> Tensor:
            base = self.fc(x).add(0)  # more than the leaf returns
            y = self.a(base.t().clone())
            overwrite(y)
            return self.b(y)

        return Net(run, fc=nn.Linear(4, 4), a=Do(lambda x: x.t()), b=nn.Linear(4, 3)), torch.randn(2, 4)


for _name, _overwrite in OVERWRITES.items():
    _overwriting(_name, _overwrite)


@model("relu in place after everything")
def _() -> Any:
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(nn.Linear(4, 4), relu, nn.BatchNorm1d(4), relu)


@model("identity, its input overwritten")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        z = self.identity(y)
        y.mul_(2)
        w = self.identity(z)
        w.add_(1)
        return self.b(w)

    return Net(run, a=nn.Linear(4, 4), identity=nn.Identity(), b=nn.Linear(4, 3))


@model("the user's input passed on, then overwritten")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.identity(x)
        with torch.no_grad():
            x.add_(1)
        return self.b(y)

    return Net(run, identity=nn.Identity(), b=nn.Linear(4, 3))


@model("one row per call of one tensor")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        memory = torch.zeros(3, 2, 4)
        for row in memory:
            self.write(row, x)
            x = x + row
        return self.b(memory.sum(0) + x)

    return Net(run, write=Do(lambda row, x: row.copy_(x.detach() * 2)), b=nn.Linear(4, 3))


@model("a buffer filled again in every call")
def _() -> Any:
    def count(self: Own, x: Tensor) -> Tensor:
        self.seen += x.detach()
        return self.seen

    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.b(self.count(x) + self.count(x) + self.count(x))

    return Net(run, count=Own(count), b=nn.Linear(4, 3))


@model("a parameter returned, then changed")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        weight = self.own()
        y = self.b(x + weight.detach())
        with torch.no_grad():
            weight.mul_(2)
        return y + self.own().sum()

    return Net(run, own=Own(lambda self: self.weight), b=nn.Linear(4, 3))


@model("a buffer returned, then moved by batch norm")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        mean = self.peek()
        return self.bn(x) + mean

    bn = nn.BatchNorm1d(4)
    return Net(run, peek=Do(lambda: bn.running_mean), bn=bn)


@model("an embedding that renormalizes what it returned")
def _() -> Any:
    embedding = nn.Embedding(3, 4, max_norm=0.5)

    def run(self: nn.Module, i: Tensor) -> Tensor:
        return self.look() + self.embedding(i).sum()

    return Net(run, look=Do(lambda: embedding.weight.detach()), embedding=embedding), torch.tensor([0, 2])


@model("a list that is changed later")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        out = self.a(x)
        first = out["parts"].pop(0)
        out["parts"].append(first * 2)
        out["more"] = first
        return self.b(first + out.pop("whole"))

    return Net(run, a=Do(lambda x: {"parts": [x + 1, x + 2], "whole": x}), b=nn.Linear(4, 3))


@model("a dataclass that is changed later")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        out = self.a(x)
        out.logits = out.logits * 3
        out.parts[0].add_(1)
        return self.b(out.logits + out.parts[0])

    return Net(run, a=Do(lambda x: Result(x + 1, [x * 2])), b=nn.Linear(4, 3))


@model("overwritten before and after a second use")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        y.mul_(2)
        z = self.same(y)  # another output in the same memory
        z.add_(1)
        return self.b(self.same(z[:, :]).neg_())

    return Net(run, a=Do(lambda x: x + 1), same=Do(lambda x: x.view(2, 4)), b=nn.Linear(4, 3))


@model("overwritten in backward")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        if y.requires_grad:
            y.register_hook(silently(lambda grad: y.data.zero_()))
        return self.b(y)

    return Net(run, a=Do(lambda x: x + 1), b=Own(lambda self, x: x + self.weight)), torch.randn(
        2, 4, requires_grad=True
    )
