"""Thirty-two awkward edits: a model, an edit, and what has to come of it, computed without any tool.

`whole` is the same edit as a function of the whole tensor, for tools that take only that. It is one file, of over 400
lines, because it is one list, which the tests and the benchmark both go through.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope import at, edit
from hookscope.edits import Edit
from tests.shared.awkward import Do, Net, tensors_in

Run = Callable[[nn.Module], Any]


@dataclasses.dataclass
class EditCase:
    """One awkward edit.

    Attributes:
        make: makes the model, the same one each time.
        run: runs the passes and gives tensors in any structure.
        layer: which layer is edited.
        whole: what is made of the whole tensor; may write to it, as people do.
        ours: the same edit, asked of hookscope.
        truth: computes what has to come out, from a model of its own; None if only an error is right.
        to, part, calls: which tensor, of which calls.
        may_refuse: whether an error is right, too.

    """

    make: Callable[[], nn.Module]
    run: Run
    layer: str
    whole: Callable[[Tensor], Any]
    ours: Callable[[Edit], None]
    truth: Run | None
    to: str = "output"
    part: Any = None
    calls: frozenset[int] | None = None
    may_refuse: bool = False

    def made(self) -> nn.Module:
        """Make the model from the same random numbers."""
        torch.manual_seed(0)
        return self.make()

    def wanted(self) -> list[Tensor] | None:
        """Compute what has to come out."""
        return None if self.truth is None else _tensors(self.truth(self.made()))

    def judge(self, edited: Callable[[nn.Module], Any]) -> tuple[str, str]:
        """Return right, refused, not applied, wrong, raises or left behind, and what was said."""
        model = self.made()
        before = state_of(model)
        found: list[Tensor] | None = None
        said = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = _tensors(edited(model))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        left = state_of(model) != before
        if found is None:
            refused = self.truth is None or self.may_refuse
            return ("left behind" if left else "refused" if refused else "raises"), said
        if left:
            return "left behind", "hooks, flags or a replaced forward stay on the model"
        wanted = self.wanted()
        if wanted is not None and _same(found, wanted):
            return "right", ""
        plain = self.made()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                untouched = _tensors(self.run(plain))
            except Exception:
                untouched = []
        return ("not applied" if untouched and _same(found, untouched) else "wrong"), ""

    def edited(self, model: nn.Module) -> Any:
        """Edit with hookscope."""
        with edit(model) as e:
            self.ours(e)
            return self.run(model)

    def check(self) -> None:
        """Assert that hookscope is right, or says why not."""
        verdict, said = self.judge(self.edited)
        assert verdict in ("right", "refused"), f"{verdict}: {said}"
        assert verdict == "right" or repr(self.layer) in said or "batch" in said, said


def state_of(model: nn.Module) -> list[Any]:
    """What a tool may not leave anything in: hooks, flags, forwards, submodules, what parameters require."""
    kept = []
    for name, module in model.named_modules():
        own = {
            key: [(kid, id(hook)) for kid, hook in value.items()] if "hooks" in key and isinstance(value, dict) else ""
            for key, value in vars(module).items()
        }
        kept.append((name, type(module), sorted(own.items(), key=lambda item: item[0]), module.training))
    return [kept, [(name, p.requires_grad) for name, p in model.named_parameters()]]


def _tensors(value: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(value)]


def _same(mine: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-5)
        for a, b in zip(mine, theirs, strict=True)
    )


X = torch.linspace(-2, 2, 12).reshape(3, 4)
IDS = torch.tensor([[5, 3, 9, 1, 7], [2, 8, 8, 4, 6]])
V = torch.linspace(-1, 1, 16)


def _by_hook(layer: str, new: Callable[[Tensor], Tensor]) -> Run:
    """Make a truth of the layer's forward, replaced by itself and then `new`: no hook in it."""

    def truth(case_run: Run, model: nn.Module) -> Any:
        module = model.get_submodule(layer)
        forward = module.forward
        module.forward = lambda *args, **kwargs: new(forward(*args, **kwargs))
        return case_run(model)

    return truth  # type: ignore[return-value]


CASES: dict[str, EditCase] = {}


def _case(name: str, make: Any, run: Run, layer: str, whole: Any, ours: Any, truth: Any, **more: Any) -> None:
    if truth == "layer":
        replaced = _by_hook(layer, lambda t: whole(t.clone()))
        truth = lambda model: replaced(run, model)  # type: ignore[call-arg] # noqa: E731
    CASES[name] = EditCase(make, run, layer, whole, ours, truth, **more)


def resnet() -> nn.Module:
    """A resnet18 of torchvision."""
    from torchvision.models import resnet18

    return resnet18(num_classes=5).eval()


def gpt2() -> nn.Module:
    """A small GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=32, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


def bert() -> nn.Module:
    """A small BERT of transformers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20)
    return Net(lambda self, ids: self.bert(ids).last_hidden_state, bert=BertModel(config)).eval()


def quiet(run: Run) -> Run:
    """Run without gradients."""

    def quietly(model: nn.Module) -> Any:
        with torch.no_grad():
            return run(model)

    return quietly


def set_(index: Any, value: float = 0.0) -> Callable[[Tensor], Tensor]:
    """Write in place, as people do in their functions."""

    def write(tensor: Tensor) -> Tensor:
        tensor[index] = value
        return tensor

    return write


IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
on_images = quiet(lambda model: model(IMAGES))
on_ids = quiet(lambda model: model(IDS).logits if hasattr(model, "transformer") else model(IDS))
on_x = quiet(lambda model: model(X))


def generating(model: nn.Module) -> Any:
    """Generate four tokens, and give how many tokens each pass got, too."""
    with torch.no_grad():
        made = model.generate(  # type: ignore[operator]
            IDS, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    return made.sequences, *made.logits, torch.tensor(made.past_key_values.get_seq_length())


_case("a channel", resnet, on_images, "layer1.0.conv1", set_(at[:, 3]),
      lambda e: e.set("layer1.0.conv1", 0, at[:, 3]), "layer")  # fmt: skip
_case("a position of a language model", gpt2, on_ids, "transformer.h.0.mlp", set_(at[:, 2]),
      lambda e: e.set("transformer.h.0.mlp", 0, at[:, 2]), "layer")  # fmt: skip


def _steer(tensor: Tensor) -> Tensor:
    new = tensor.clone()
    new[:, -1] += 5 * V
    return new


_case("steering every step of generate()", gpt2, generating, "transformer.h.0.mlp", _steer,
      lambda e: e.add("transformer.h.0.mlp", 5 * V, at[:, -1]), "layer")  # fmt: skip
_case("the KV cache stays on", gpt2, generating, "transformer.h.1", lambda t: t * 0.5,
      lambda e: e.scale("transformer.h.1", 0.5), "layer")  # fmt: skip


def _half_input(model: nn.Module) -> Any:
    fc = model.fc
    model.fc = nn.Identity()
    return F.linear(on_images(model) * 0.5, fc.weight, fc.bias).detach()  # type: ignore[arg-type]


_case("an input", resnet, on_images, "fc", lambda t: t * 0.5, lambda e: e.scale("fc", 0.5, to="input"), _half_input,
      to="input")  # fmt: skip


def two_linear() -> nn.Module:
    """Two layers, to go backward through."""
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def grads(model: nn.Module) -> Any:
    """Run forward and backward."""
    model.zero_grad()
    x = X.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y, x.grad, *[p.grad for p in model.parameters() if p.grad is not None]


def _zeroed(model: nn.Module) -> Any:
    y = model(X)
    h = 2 * y * (1 - y**2)
    h[:, 1] = 0
    return y, h @ model[0].weight, h.T @ X, h.sum(0)  # type: ignore[index]


_case("a gradient", two_linear, grads, "0", set_(at[:, 1]), lambda e: e.set("0", 0, at[:, 1], to="grad"), _zeroed,
      to="grad")  # fmt: skip


def thrice() -> nn.Module:
    """A layer that is called three times."""
    return Net(lambda self, x: self.act(self.act(self.act(x) + 1) + 1), act=nn.Tanh())


_case("one call of three", thrice, on_x, "act", lambda t: t * 3, lambda e: e.scale("act", 3.0, calls={2}),
      lambda model: torch.tanh(3 * torch.tanh(torch.tanh(X) + 1) + 1), calls=frozenset({2}))  # fmt: skip
_case("one tensor of an LSTM's tuple", lambda: Net(lambda self, x: self.rnn(x), rnn=nn.LSTM(4, 3)), on_x, "rnn",
      lambda t: t * 0, lambda e: e.set("rnn", 0, part=(1, 0)),
      lambda model: (lambda y, h, c: (y, (h * 0, c)))(*(lambda out: (out[0], *out[1]))(model(X))),
      part=(1, 0))  # fmt: skip
_case("a keyword", lambda: Net(lambda self, x: self.leaf(x, hidden=2 * x), leaf=Do(lambda x, hidden: x + hidden)),
      on_x, "leaf", lambda t: t * 10, lambda e: e.scale("leaf", 10.0, to="input", part="hidden"),
      lambda model: 21 * X, to="input", part="hidden")  # fmt: skip
_case("a field of a dict", lambda: Net(lambda self, x: self.leaf(x), leaf=Do(lambda x: {"b": x, "a": x + 1})), on_x,
      "leaf", lambda t: t * 0, lambda e: e.set("leaf", 0, part="a"), lambda model: [X, X * 0], part="a")  # fmt: skip
_case("a field of a ModelOutput", bert, on_ids, "bert", lambda t: t * 2,
      lambda e: e.scale("bert", 2.0, part="last_hidden_state"), lambda model: 2 * on_ids(model),
      part="last_hidden_state")  # fmt: skip
_case("one sample", two_linear, on_x, "0", set_(at[1], 7.0), lambda e: e.set("0", 7.0, rows=[1]),
      lambda model: torch.tanh(set_(at[1], 7.0)(model[0](X).detach())))  # fmt: skip

_VECTOR = torch.zeros(4, requires_grad=True)


def _train(model: nn.Module) -> Any:
    _VECTOR.grad = None
    y = model(X)
    y.square().sum().backward()
    return y, _VECTOR.grad if _VECTOR.grad is not None else torch.zeros(4)


def _trained(model: nn.Module) -> Any:
    y = model(X)
    return y, (2 * y * (1 - y**2)).sum(0)


_case("a vector that is trained", two_linear, _train, "0", lambda t: t + _VECTOR,
      lambda e: e.add("0", _VECTOR), _trained)  # fmt: skip


def skipping(layer: nn.Module) -> Callable[[], nn.Module]:
    """Make a skip connection around a layer that returns what it gets."""
    return lambda: Net(lambda self, x: self.leaf(x) + 100 * x, leaf=layer)


_skipped = lambda model: set_(at[:, 1])(X.clone()) + 100 * X  # noqa: E731
on_copy = quiet(lambda model: model(X.clone()))
_case("Dropout in eval beside a skip", skipping(nn.Dropout(0.5).eval()), on_copy, "leaf", set_(at[:, 1]),
      lambda e: e.map("leaf", set_(at[:, 1])), _skipped)  # fmt: skip
_case("Identity beside a skip", skipping(nn.Identity()), on_copy, "leaf", set_(at[:, 1]),
      lambda e: e.map("leaf", set_(at[:, 1])), _skipped)  # fmt: skip


def _sigmoid(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    y = torch.sigmoid(x) * 3
    y.square().sum().backward()
    return y, x.grad


_case("what Sigmoid saved for backward", lambda: nn.Sequential(nn.Sigmoid()), grads, "0", lambda t: t.mul_(3),
      lambda e: e.map("0", lambda t: t.mul_(3)), _sigmoid)  # fmt: skip


def shared() -> nn.Module:
    """One module under two names."""
    act = nn.Tanh()
    return nn.Sequential(act, nn.Linear(4, 4), act)


_case("the second name of a shared layer", shared, on_x, "2", lambda t: t * 2, lambda e: e.scale("2", 2.0),
      lambda model: 2 * torch.tanh(model[1](2 * torch.tanh(X))).detach())  # fmt: skip


def checkpointed() -> nn.Module:
    """A block that runs again in backward."""
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    return Net(lambda self, x: checkpoint(self.block, x, use_reentrant=False), block=block)


def _unchecked(model: nn.Module) -> Any:
    block = model.block
    plain = Net(lambda self, x: block[3](block[2](block[1](3 * block[0](x)))), block=block)  # type: ignore[index]
    return grads(plain)


_case("a checkpoint", checkpointed, grads, "block.0", lambda t: t * 3, lambda e: e.scale("block.0", 3.0), _unchecked)
_case("the first call under a checkpoint", checkpointed, grads, "block.0", lambda t: t * 3,
      lambda e: e.scale("block.0", 3.0, calls={1}), _unchecked, calls=frozenset({1}))  # fmt: skip


def fused() -> nn.Module:
    """An encoder that torch runs as one operation."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2).eval()


def _wider(model: nn.Module) -> nn.Module:
    for parameter in model.layers[0].linear1.parameters():  # type: ignore[index]
        parameter.data *= 2
    return model


_case("inside a fused encoder", fused, quiet(lambda model: model(X[None])), "layers.0.linear1", lambda t: t * 2,
      lambda e: e.scale("layers.0.linear1", 2.0), lambda model: _wider(model)(X[None]).detach())  # fmt: skip


def hooked() -> nn.Module:
    """A model with a hook of its owner's."""
    net = two_linear()
    net[0].register_forward_hook(lambda module, args, output: output + 5)  # type: ignore[index]
    return net


_case("beside a hook of the owner's", hooked, on_x, "0", lambda t: t * 2, lambda e: e.scale("0", 2.0),
      lambda model: torch.tanh(2 * (F.linear(X, model[0].weight, model[0].bias) + 5)).detach())  # fmt: skip
_case("an in-place operation comes next", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), on_x, "0",
      set_(at[:, 2], -3.0), lambda e: e.set("0", -3.0, at[:, 2]),
      lambda model: set_(at[:, 2])(torch.relu(F.linear(X, model[0].weight, model[0].bias))).detach())  # fmt: skip


def _fail(tensor: Tensor) -> Tensor:
    raise ArithmeticError("in layer '0', on purpose")


_case("an exception leaves nothing", two_linear, on_x, "0", _fail, lambda e: e.map("0", _fail), None)
_case("a function that returns None", two_linear, on_x, "0", lambda t: None, lambda e: e.map("0", lambda t: None), None)
_case("a batch that would grow", two_linear, on_x, "0", lambda t: t + torch.ones(5, 1, 1),
      lambda e: e.add("0", torch.ones(5, 1, 1)), None)  # fmt: skip


def unused() -> nn.Module:
    """Two layers that the model does not call, one of them by `forward`."""
    return Net(
        lambda self, x: self.direct.forward(self.used(x)),
        used=nn.Linear(4, 4), direct=nn.Linear(4, 4), unused=nn.Linear(4, 4),
    )  # fmt: skip


_double = lambda t: t * 2  # noqa: E731
_case("a layer that is never called", unused, on_x, "unused", _double, lambda e: e.scale("unused", 2.0), None)
_case("a layer whose forward is called directly", unused, on_x, "direct", _double, lambda e: e.scale("direct", 2.0),
      lambda model: 2 * model.direct(model.used(X)).detach(), may_refuse=True)  # fmt: skip
_case("out_proj of MultiheadAttention", lambda: nn.MultiheadAttention(4, 2), quiet(lambda model: model(X, X, X)[0]),
      "out_proj", _double, lambda e: e.scale("out_proj", 2.0), None)  # fmt: skip


def compiled_before() -> nn.Module:
    """A model that was compiled and run."""
    net = two_linear()
    torch._dynamo.reset()
    net.__dict__["compiled"] = torch.compile(net, backend="eager")
    on_x(net.__dict__["compiled"])
    return net


_case("a model compiled before", compiled_before, quiet(lambda model: model.__dict__["compiled"](X)), "0", _double,
      lambda e: e.scale("0", 2.0), lambda model: torch.tanh(2 * model[0](X)).detach(), may_refuse=True)  # fmt: skip


def traced_before() -> nn.Module:
    """A model whose trace runs."""
    net = two_linear()
    with contextlib.suppress(Warning), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.__dict__["traced"] = torch.jit.trace(net, X)
    return net


_case("a traced model", traced_before, quiet(lambda model: model.__dict__["traced"](X)), "0", _double,
      lambda e: e.scale("0", 2.0), None)  # fmt: skip
_case("the fourth call of three", thrice, on_x, "act", _double, lambda e: e.scale("act", 2.0, calls={4}), None,
      calls=frozenset({4}))  # fmt: skip
_case("an unknown layer", two_linear, on_x, "tanh", _double, lambda e: e.scale("tanh", 2.0), None)
