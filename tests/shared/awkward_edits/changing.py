"""Edits that change something: a channel, a step of generate(), a gradient, a sample, one call of three."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import at
from tests.shared.awkward_edits.case import V, X, case, on_x, quiet, set_, thrice, two_linear
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import IDS, bert, generate, gpt2
from tests.shared.networks import make_checkpointed, resnet18

resnet = partial(resnet18, 5)
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
on_images = quiet(lambda model: model(IMAGES))
on_ids = quiet(lambda model: model(IDS).logits if hasattr(model, "transformer") else model(IDS))


def generating(model: nn.Module) -> Any:
    """Generate four tokens, and give how many tokens each pass got, too."""
    made = generate(model, tokens=4)
    return made.sequences, *made.logits, torch.tensor(made.past_key_values.get_seq_length())


case("a channel", resnet, on_images, "layer1.0.conv1", set_(at[:, 3]),
      lambda e: e.set("layer1.0.conv1", 0, at[:, 3]), "layer")  # fmt: skip
case("a position of a language model", gpt2, on_ids, "transformer.h.0.mlp", set_(at[:, 2]),
      lambda e: e.set("transformer.h.0.mlp", 0, at[:, 2]), "layer")  # fmt: skip


def _steer(tensor: Tensor) -> Tensor:
    new = tensor.clone()
    new[:, -1] += 5 * V
    return new


case("steering every step of generate()", gpt2, generating, "transformer.h.0.mlp", _steer,
      lambda e: e.add("transformer.h.0.mlp", 5 * V, at[:, -1]), "layer")  # fmt: skip
case("the KV cache stays on", gpt2, generating, "transformer.h.1", lambda t: t * 0.5,
      lambda e: e.scale("transformer.h.1", 0.5), "layer")  # fmt: skip


def _half_input(model: nn.Module) -> Any:
    fc = model.fc
    model.fc = nn.Identity()
    return F.linear(on_images(model) * 0.5, fc.weight, fc.bias).detach()  # type: ignore[arg-type]


case("an input", resnet, on_images, "fc", lambda t: t * 0.5, lambda e: e.scale("fc", 0.5, to="input"), _half_input,
      to="input")  # fmt: skip


def grads(model: nn.Module) -> Any:
    """Run forward and backward."""
    model.zero_grad()
    x = X.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y, x.grad, *[p.grad for p in model.parameters() if p.grad is not None]


def _zeroed(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    h = model[0](x)  # type: ignore[index]
    y = torch.tanh(h)
    (grad,) = torch.autograd.grad(y.square().sum(), h, retain_graph=True)
    return y, *torch.autograd.grad(h, (x, *model.parameters()), set_(at[:, 1])(grad.clone()))


case("a gradient", two_linear, grads, "0", set_(at[:, 1]), lambda e: e.set("0", 0, at[:, 1], to="grad"), _zeroed,
      to="grad")  # fmt: skip


case("one call of three", thrice, on_x, "act", lambda t: t * 3, lambda e: e.scale("act", 3.0, calls={2}),
      lambda model: torch.tanh(3 * torch.tanh(torch.tanh(X) + 1) + 1), calls=frozenset({2}))  # fmt: skip
case("one tensor of an LSTM's tuple", lambda: Net(lambda self, x: self.rnn(x), rnn=nn.LSTM(4, 3)), on_x, "rnn",
      lambda t: t * 0, lambda e: e.set("rnn", 0, part=(1, 0)),
      quiet(lambda model: (lambda y, h, c: (y, (h * 0, c)))(*(lambda out: (out[0], *out[1]))(model(X)))),
      part=(1, 0))  # fmt: skip
case("a keyword", lambda: Net(lambda self, x: self.leaf(x, hidden=2 * x), leaf=Do(lambda x, hidden: x + hidden)),
      on_x, "leaf", lambda t: t * 10, lambda e: e.scale("leaf", 10.0, to="input", part="hidden"),
      lambda model: 21 * X, to="input", part="hidden")  # fmt: skip
case("a field of a dict", lambda: Net(lambda self, x: self.leaf(x), leaf=Do(lambda x: {"b": x, "a": x + 1})), on_x,
      "leaf", lambda t: t * 0, lambda e: e.set("leaf", 0, part="a"), lambda model: [X, X * 0], part="a")  # fmt: skip
case("a field of a ModelOutput", lambda: Net(lambda self, ids: self.bert(ids).last_hidden_state, bert=bert()), on_ids,
      "bert", lambda t: t * 2,
      lambda e: e.scale("bert", 2.0, part="last_hidden_state"), lambda model: 2 * on_ids(model),
      part="last_hidden_state")  # fmt: skip
case("one sample", two_linear, on_x, "0", set_(at[1], 7.0), lambda e: e.set("0", 7.0, samples=[1]),
      lambda model: torch.tanh(set_(at[1], 7.0)(model[0](X).detach())))  # fmt: skip

_VECTOR = torch.zeros(4, requires_grad=True)


def _train(model: nn.Module) -> Any:
    _VECTOR.grad = None
    y = model(X)
    y.square().sum().backward()
    return y, _VECTOR.grad if _VECTOR.grad is not None else torch.zeros(4)


def _trained(model: nn.Module) -> Any:
    vector = torch.zeros(4, requires_grad=True)
    y = torch.tanh(model[0](X) + vector)  # type: ignore[index]
    return y, *torch.autograd.grad(y.square().sum(), vector)


case("a vector that is trained", two_linear, _train, "0", lambda t: t + _VECTOR,
      lambda e: e.add("0", _VECTOR), _trained)  # fmt: skip


def skipping(layer: nn.Module) -> Callable[[], nn.Module]:
    """Make a skip connection around a layer that returns what it gets."""
    return lambda: Net(lambda self, x: self.leaf(x) + 100 * x, leaf=layer)


_skipped = lambda model: set_(at[:, 1])(X.clone()) + 100 * X  # noqa: E731
on_copy = quiet(lambda model: model(X.clone()))
case("Dropout in eval beside a skip", skipping(nn.Dropout(0.5).eval()), on_copy, "leaf", set_(at[:, 1]),
      lambda e: e.map("leaf", set_(at[:, 1])), _skipped)  # fmt: skip
case("Identity beside a skip", skipping(nn.Identity()), on_copy, "leaf", set_(at[:, 1]),
      lambda e: e.map("leaf", set_(at[:, 1])), _skipped)  # fmt: skip


def _sigmoid(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    y = torch.sigmoid(x) * 3
    y.square().sum().backward()
    return y, x.grad


case("what Sigmoid saved for backward", lambda: nn.Sequential(nn.Sigmoid()), grads, "0", lambda t: t.mul_(3),
      lambda e: e.map("0", lambda t: t.mul_(3)), _sigmoid)  # fmt: skip


def shared() -> nn.Module:
    """One module under two names."""
    act = nn.Tanh()
    return nn.Sequential(act, nn.Linear(4, 4), act)


case("the second name of a shared layer", shared, on_x, "2", lambda t: t * 2, lambda e: e.scale("2", 2.0),
      lambda model: 2 * torch.tanh(model[1](2 * torch.tanh(X))).detach())  # fmt: skip


def checkpointed() -> nn.Module:
    """A block that runs again in backward."""
    return make_checkpointed(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()))


def _unchecked(model: nn.Module) -> Any:
    block = model.block
    plain = Net(lambda self, x: block[3](block[2](block[1](3 * block[0](x)))), block=block)  # type: ignore[index]
    return grads(plain)


case("a checkpoint", checkpointed, grads, "block.0", lambda t: t * 3, lambda e: e.scale("block.0", 3.0), _unchecked)
case("the first call under a checkpoint", checkpointed, grads, "block.0", lambda t: t * 3,
      lambda e: e.scale("block.0", 3.0, calls={1}), _unchecked, calls=frozenset({1}))  # fmt: skip


def fused() -> nn.Module:
    """An encoder that torch runs as one operation."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2).eval()


def _wider(model: nn.Module) -> Any:
    linear = model.layers[0].linear1  # type: ignore[index]
    for parameter in linear.parameters():
        parameter.data *= 2
    linear.register_forward_hook(lambda *_: None)  # else the layer is one operation, which rounds differently
    return model(X[None])


case("inside a fused encoder", fused, quiet(lambda model: model(X[None])), "layers.0.linear1", lambda t: t * 2,
      lambda e: e.scale("layers.0.linear1", 2.0), quiet(_wider))  # fmt: skip


def hooked() -> nn.Module:
    """A model with a hook of its owner's."""
    net = two_linear()
    net[0].register_forward_hook(lambda module, args, output: output + 5)  # type: ignore[index]
    return net


case("beside a hook of the owner's", hooked, on_x, "0", lambda t: t * 2, lambda e: e.scale("0", 2.0),
      lambda model: torch.tanh(2 * (F.linear(X, model[0].weight, model[0].bias) + 5)).detach())  # fmt: skip
case("an in-place operation comes next", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), on_x, "0",
      set_(at[:, 2], -3.0), lambda e: e.set("0", -3.0, at[:, 2]),
      lambda model: set_(at[:, 2])(torch.relu(F.linear(X, model[0].weight, model[0].bias))).detach())  # fmt: skip
