"""Edits that cannot be made, or that may be refused: nothing is said to be done that was not."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor, nn

from tests.shared.awkward_edits.case import X, case, on_x, quiet, thrice, two_linear
from tests.shared.awkward_models import Net


def _fail(tensor: Tensor) -> Tensor:
    raise ArithmeticError("in layer '0', on purpose")


case("an exception leaves nothing", two_linear, on_x, "0", _fail, lambda e: e.map("0", _fail), None)
case("a function that returns None", two_linear, on_x, "0", lambda t: None, lambda e: e.map("0", lambda t: None), None)
case("a batch that would grow", two_linear, on_x, "0", lambda t: t + torch.ones(5, 1, 1),
      lambda e: e.add("0", torch.ones(5, 1, 1)), None)  # fmt: skip


def unused() -> nn.Module:
    """Two layers that the model does not call, one of them by `forward`."""
    return Net(
        lambda self, x: self.direct.forward(self.used(x)),
        used=nn.Linear(4, 4), direct=nn.Linear(4, 4), unused=nn.Linear(4, 4),
    )  # fmt: skip


_double = lambda t: t * 2  # noqa: E731
case("a layer that is never called", unused, on_x, "unused", _double, lambda e: e.scale("unused", 2.0), None)
case("a layer whose forward is called directly", unused, on_x, "direct", _double, lambda e: e.scale("direct", 2.0),
      lambda model: 2 * model.direct(model.used(X)).detach(), may_refuse=True)  # fmt: skip
case("out_proj of MultiheadAttention", lambda: nn.MultiheadAttention(4, 2), quiet(lambda model: model(X, X, X)[0]),
      "out_proj", _double, lambda e: e.scale("out_proj", 2.0), None)  # fmt: skip


def compiled_before() -> nn.Module:
    """A model that was compiled and run."""
    net = two_linear()
    torch._dynamo.reset()
    net.__dict__["compiled"] = torch.compile(net, backend="eager")
    on_x(net.__dict__["compiled"])
    return net


case("a model compiled before", compiled_before, quiet(lambda model: model.__dict__["compiled"](X)), "0", _double,
      lambda e: e.scale("0", 2.0), lambda model: torch.tanh(2 * model[0](X)).detach(), may_refuse=True)  # fmt: skip


def traced_before() -> nn.Module:
    """A model whose trace runs."""
    net = two_linear()
    with contextlib.suppress(Warning), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.__dict__["traced"] = torch.jit.trace(net, X)
    return net


case("a traced model", traced_before, quiet(lambda model: model.__dict__["traced"](X)), "0", _double,
      lambda e: e.scale("0", 2.0), None)  # fmt: skip
case("the fourth call of three", thrice, on_x, "act", _double, lambda e: e.scale("act", 2.0, calls={4}), None,
      calls=frozenset({4}))  # fmt: skip
case("an unknown layer", two_linear, on_x, "tanh", _double, lambda e: e.scale("tanh", 2.0), None)
