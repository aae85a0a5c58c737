"""Models whose layers return something unusual."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.shared.awkward_models.building import Do, Frozen, Net, Pair, Result, model


def returning(name: str, function: Callable[..., Any], use: Callable[[Any], Tensor], *args: Any) -> None:
    """Enter: a Linear, a leaf that returns something unusual, and a Linear after what is used of it."""

    @model(name)
    def _() -> Any:
        net = Net(
            lambda self, *xs: self.after(use(self.leaf(self.before(*xs)))),
            before=nn.Linear(4, 4),
            leaf=Do(function),
            after=nn.Linear(4, 3),
        )
        return net, *(args or (torch.randn(2, 4),))


returning("nested outputs", lambda x: ({"a": [x * 2, (x + 1,)]}, [x]), lambda out: out[0]["a"][1][0] + out[1][0])
returning("empty structures", lambda x: (x * 2, (), [], {}, None), lambda out: out[0])
returning("namedtuple", lambda x: Pair(x - 1, x + 1), lambda out: out.low * out.high)
returning("dataclass", lambda x: Result(x * 2, [x, x + 1]), lambda out: out.logits + out.parts[1])
returning("frozen dataclass", lambda x: Frozen(x * 2), lambda out: out.value)
returning("OrderedDict", lambda x: OrderedDict(b=x, a=x * 2), lambda out: out["a"])
returning("defaultdict", lambda x: defaultdict(list, a=[x * 2]), lambda out: out["a"][0])
returning("torch.return_types", lambda x: x.max(dim=1, keepdim=True), lambda out: out.values.expand(-1, 4))
returning("the same tensor twice", lambda x: (y := x * 2, y), lambda out: out[0] + out[1])
returning("None", lambda x: None, lambda out: torch.ones(2, 4))
returning("int", lambda x: 3, lambda out: torch.full((2, 4), float(out)))
returning("str", lambda x: "text", lambda out: torch.full((2, 4), float(len(out))))
returning("no elements", lambda x: (x[:0], x), lambda out: out[1] + out[0].sum())
returning("zero-dimensional", lambda x: x.sum(), lambda out: out.expand(2, 4))
returning("integers", lambda x: (x * 10).long(), lambda out: out.float())
returning("booleans", lambda x: x > 0, lambda out: out.float())
returning("complex", lambda x: torch.complex(x, x + 1), lambda out: out.real * out.imag)
returning("conjugate", lambda x: torch.complex(x, x + 1).conj(), lambda out: out.imag)
returning("bfloat16", lambda x: x.bfloat16(), lambda out: out.float())
returning("float64", lambda x: x.double(), lambda out: out.float())
returning("NaN and inf", lambda x: torch.stack([x, x.detach() / 0, x.detach() * math.nan]), lambda out: out[0])
returning("sparse", lambda x: x.relu().to_sparse(), lambda out: out.to_dense())
returning(
    "channels_last",
    lambda x: x.view(1, 2, 2, 2).contiguous(memory_format=torch.channels_last),
    lambda out: out.reshape(2, 4),
)
returning("detached", lambda x: x.detach(), lambda out: out * 2)
returning("chunk", lambda x: x.chunk(2), lambda out: torch.cat([out[1] * 2, out[0]]))
returning("transpose", lambda x: x.t(), lambda out: out.t() + 1)
returning("expand", lambda x: x[:1].expand(2, 4), lambda out: out * 2)
returning("unfold, which overlaps", lambda x: x.unfold(1, 2, 1), lambda out: out.reshape(2, 6)[:, :4])
returning("a string and a number beside", lambda x: (x * 2, "loss", 0.5), lambda out: out[0] * out[2])


@model("packed sequence")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True)
        y, h = self.gru(packed)
        return self.fc(nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0][:, 0] + h[-1])

    return Net(run, gru=nn.GRU(4, 5, batch_first=True), fc=nn.Linear(5, 3)), torch.randn(2, 3, 4)


@model("parametrized weight")
def _() -> Any:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(inplace=True))
