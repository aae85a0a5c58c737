"""Models that call their layers in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.shared.awkward_models.building import Case, Do, Net, Own, model, seed, silently


@model("no_grad inside")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.a(x)
        z = self.a(x)
        z += y
        return self.b(z)

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3))


@model("inference_mode inside")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.a(x)
            y += 1
        return self.b(x + y.clone())

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3))


@model("autocast inside")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.relu(self.a(x))
        return self.b(y.float())

    return Net(run, a=nn.Linear(4, 4), relu=nn.ReLU(inplace=True), b=nn.Linear(4, 3))


def _checkpointed(reentrant: bool) -> Any:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 4))

    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.b(checkpoint(self.block, self.a(x), use_reentrant=reentrant))

    return Net(run, a=nn.Linear(4, 4), block=block, b=nn.Linear(4, 3))


model("checkpoint")(lambda: _checkpointed(False))
model("reentrant checkpoint")(lambda: _checkpointed(True))


@model("what layers return is in the memory of what they got, or saved for backward")
def _() -> Any:
    leaves = {"same": nn.Identity(), "view": Do(lambda x: x[:]), "detached": Do(lambda x: x.detach())}
    saving = {"sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "softmax": nn.Softmax(-1)}

    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.fc(x)
        z = self.same(y) + self.view(y) + self.detached(y) + 1000 * y
        return self.softmax(self.tanh(self.sigmoid(z))) * x

    return Net(run, fc=nn.Linear(4, 4), **leaves, **saving)


@model("recursion")
def _() -> Any:
    def run(self: nn.Module, x: Tensor, depth: int = 3) -> Tensor:
        return self(self.fc(x).relu_(), depth - 1) if depth else x

    return Net(run, fc=nn.Linear(4, 4))


@model("a leaf that calls itself")
def _() -> Any:
    def down(self: Own, x: Tensor, depth: int = 3) -> Tensor:
        return self(x * self.weight, depth - 1).add_(1) if depth else x * 2

    return nn.Sequential(Own(down), nn.Linear(4, 3))


@model("a module made during forward")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        self.late = nn.Softplus()
        return self.b(nn.Tanh()(self.late(x)))

    return Net(run, b=nn.Linear(4, 3))


@model("a module replaced during forward")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.b(x)
        self.b = nn.Identity()
        return self.b(y)

    return Net(run, b=nn.Linear(4, 3))


@model("dropout in train")
def _() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout1d(0.5, inplace=True), nn.RReLU(inplace=True))


@model("batch norm in train, frozen weights")
def _() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 3).eval())
    net[0].requires_grad_(False)
    return net


@model("the user's own hooks replace and overwrite")
def _() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[1].register_forward_pre_hook(silently(lambda module, args: args[0].mul_(2)))
    net[1].register_forward_hook(silently(lambda module, args, output: output.add_(1)))
    return net


@model("the root is the only leaf")
def _() -> Any:
    return nn.Linear(4, 3)


@model("an empty Sequential")
def _() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(), nn.ReLU(inplace=True))


@model("an input that requires grad")
def _() -> Any:
    return nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.randn(2, 4, requires_grad=True)


@model("branches, one without gradient")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        self.c(y)
        return self.b(y), self.b(y.detach()).sum()

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 2))


@model("a layer whose hash changes in each call")
def _() -> Any:
    class Meter(nn.Module):
        """As a metric of torchmetrics, whose hash depends on its state."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def __hash__(self) -> int:
            return hash((id(type(self)), int(self.count)))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x.mean(0)

    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        self.meter(y.detach())
        return self.b(y) + self.meter(y)

    return Net(run, a=nn.Linear(4, 4), meter=Meter(), b=nn.Linear(4, 4))


def catching() -> Case:
    """A model that catches an exception of a layer; not in `MODELS`, as one call has no output."""
    seed(0)

    def fails(x: Tensor) -> Tensor:
        if x.shape[0] == 2:
            raise ValueError("on purpose")
        return x

    def run(self: nn.Module, x: Tensor) -> Tensor:
        try:
            y = self.inner(x)
        except ValueError:
            y = self.a(x) * 3
        return self.b(y)

    a = nn.Linear(4, 4)
    inner = nn.Sequential(a, Do(fails), nn.ReLU(inplace=True))
    return Net(run, inner=inner, a=a, b=nn.Linear(4, 3)), (torch.randn(2, 4),), {}
