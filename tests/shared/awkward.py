"""Models that make it hard to see what flowed through them, and a naive reference that sees it right.

`MODELS` holds functions that build `(model, args, kwargs)`, the same numbers every time. The reference puts a plain
forward hook on every leaf that clones, at the moment the leaf returns, all there is in its output.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import math
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope import leaves

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
MODELS: dict[str, Callable[[], Case]] = {}
PEERS = 16
"""So many of `MODELS`, the first ones, are those that other tools were measured on."""

# torch's copy-on-write does not bear that the storage is resized; capture says so and offers keep="copies".
RESIZES = ("overwritten by storage freed and filled again", "a view overwritten by storage freed and filled again")
FUSED = ("transformer encoder in eval",)
"""Any hook on a child keeps these from a fused path, whose last bits may differ."""


# --- the reference


RAISED = "raised"


@dataclasses.dataclass
class Call:
    """One run of a leaf: what it was given, cloned before; what it returned, cloned then; the gradients of that."""

    layer: str
    number: int
    inputs: Any
    output: Any = RAISED
    grad: Any = None


def tensor_map(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Rebuild `value` with every tensor in it replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(type(value), [tensor_map(function, item) for item in value])
    if isinstance(value, (tuple, list)):
        return type(value)([tensor_map(function, item) for item in value])
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, {key: tensor_map(function, item) for key, item in value.items()})
    if isinstance(value, dict):
        return type(value)((key, tensor_map(function, item)) for key, item in value.items())
    if hasattr(value, "__dict__") and not callable(value):  # dataclass, torchvision's ImageList
        rebuilt = copy.copy(value)
        for key, item in vars(value).items():
            object.__setattr__(rebuilt, key, tensor_map(function, item))
        return rebuilt
    return value


def deep_clone(value: Any) -> Any:
    """Copy the structure and the tensors of `value` as they are now, without gradients."""
    return tensor_map(lambda tensor: tensor.detach().clone(), value)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of `value`, in its order."""
    found: list[Tensor] = []
    tensor_map(found.append, value)
    return found


@contextmanager
def cloning(model: nn.Module, gradients: bool = False) -> Iterator[list[Call]]:
    """Collect every call of every leaf inside the block, and for `gradients` a clone of what arrives at its output."""
    calls: list[Call] = []
    running: list[Call] = []
    arriving: list[tuple[Call, dict[int, Tensor]]] = []
    counts: dict[str, int] = defaultdict(int)

    def begin(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            counts[name] += 1
            calls.append(Call(name, counts[name], deep_clone((args, kwargs))))
            running.append(calls[-1])

        return hook

    def end(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            while (call := running.pop()).layer != name:
                pass  # left by an exception
            call.output = deep_clone(output)
            if gradients:
                grads: dict[int, Tensor] = {}
                arriving.append((call, grads))
                for place, tensor in enumerate(tensors_in(output)):
                    watch(tensor, grads, place)

        return hook

    def watch(tensor: Tensor, grads: dict[int, Tensor], place: int) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: grads.__setitem__(place, grad.detach().clone()))

    handles = []
    for name, layer in leaves(model).items():
        handles.append(layer.register_forward_pre_hook(begin(name), with_kwargs=True))
        handles.append(layer.register_forward_hook(end(name)))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for call, grads in arriving:
            places = iter(range(len(tensors_in(call.output))))
            call.grad = tensor_map(lambda _, grads=grads, places=places: grads.get(next(places)), call.output)


def clone_everything(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, int, Any]]:
    """Run `model` once: layer name, number of the call from 1, cloned output; in the order of the calls."""
    with cloning(model) as calls:
        model(*args, **kwargs)
    return [(call.layer, call.number, call.output) for call in calls]


def gradients_by_hand(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, int, Any]]:
    """Run `model` once and backward from `loss_of`: layer name, number of the call, gradient of its output."""
    with cloning(model, gradients=True) as calls:
        loss_of(model(*args, **kwargs)).backward()
    return [(call.layer, call.number, call.grad) for call in calls]


def loss_of(output: Any) -> Tensor:
    """A number to run backward from: everything in `output` that requires grad, each value weighted differently."""
    loss = torch.zeros(())
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
            flat = (dense.abs() if dense.is_complex() else dense).flatten().float()
            loss = loss + (flat * torch.linspace(0.5, 1.5, len(flat))).sum()
    return loss


# --- how two values differ


def difference(actual: Any, expected: Any, where: str = "output") -> str:
    """Say where and how `actual` is not bit for bit `expected`; empty if it is. Strides do not count."""
    if isinstance(expected, Tensor):
        return _tensor_difference(actual, expected, where)
    if type(actual) is not type(expected):
        return f"{where} is a {type(actual).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, (tuple, list)):
        if len(actual) != len(expected):
            return f"{where} has length {len(actual)}, not {len(expected)}"
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(actual, expected, strict=True))]
    elif isinstance(expected, dict):
        if list(actual) != list(expected):
            return f"{where} has keys {list(actual)}, not {list(expected)}"
        pairs = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif hasattr(expected, "__dict__") and not callable(expected):
        if list(vars(actual)) != list(vars(expected)):
            return f"{where} has attributes {list(vars(actual))}, not {list(vars(expected))}"
        pairs = [(f"{where}.{key}", vars(actual)[key], vars(expected)[key]) for key in vars(expected)]
    else:
        return "" if actual is expected or actual == expected else f"{where} is {actual!r}, not {expected!r}"
    return next(filter(None, (difference(a, e, place) for place, a, e in pairs)), "")


def _tensor_difference(actual: Any, expected: Tensor, where: str) -> str:
    if not isinstance(actual, Tensor):
        return f"{where} is a {type(actual).__name__}, not a tensor"
    for quality in ("dtype", "shape", "layout", "device"):
        if getattr(actual, quality) != getattr(expected, quality):
            return f"{where} has {quality} {getattr(actual, quality)}, not {getattr(expected, quality)}"
    if expected.layout == torch.sparse_coo:
        parts = [(t.coalesce().indices(), t.coalesce().values()) for t in (actual.detach(), expected.detach())]
        return difference(*parts, where)
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    if not torch.equal(_bits(actual), _bits(expected)):
        return f"{where} is\n{actual.detach()}\nnot\n{expected.detach()}"
    return ""


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


# --- building blocks


class Do(nn.Module):
    """A leaf that does what it is told."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Own(nn.Module):
    """A leaf with a parameter and a buffer: `function(self, *args)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4))
        self.register_buffer("seen", torch.zeros(2, 4))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Net(nn.Module):
    """Children by name, and what to do with them: `forward(self, *args, **kwargs)`."""

    def __init__(self, forward: Callable[..., Any], /, **children: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


class Pair(NamedTuple):
    """A named tuple as an output."""

    low: Tensor
    high: Tensor


@dataclasses.dataclass
class Result:
    """A dataclass as an output, as `transformers` has them."""

    logits: Tensor
    parts: list[Tensor]
    note: str = "fine"


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataclass that takes no assignment."""

    value: Tensor


class Doubling(torch.autograd.Function):
    """Doubles its input in place, the official way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def model(name: str) -> Callable[[Callable[[], Any]], Callable[[], Case]]:
    """Enter a builder of `model` or `(model, *args)` or a whole case in `MODELS`, with a fixed seed."""

    def enter(build: Callable[[], Any]) -> Callable[[], Case]:
        @wraps(build)
        def seeded() -> Case:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                built = build()
                if isinstance(built, nn.Module):
                    built = built, torch.randn(2, 4)
                if not (len(built) == 3 and isinstance(built[2], dict)):
                    built = built[0], tuple(built[1:]), {}
                return built

        assert name not in MODELS, name
        MODELS[name] = seeded
        return seeded

    return enter


def images(*shape: int) -> Tensor:
    """Random images that need a gradient where the mode allows one."""
    return torch.rand(*shape)


# --- those that other tools were measured on


@model("shared conv called twice")
def _() -> Any:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), conv), images(2, 3, 6, 6)


@model("LSTM tuple")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(x)
        return self.fc(y[:, -1] + h[-1] + c[-1])

    return Net(run, lstm=nn.LSTM(4, 5, 2, batch_first=True), fc=nn.Linear(5, 3)), torch.randn(2, 3, 4)


@model("dict output")
def _() -> Any:
    heads = Do(lambda x: {"low": x[:, :2] * 2, "high": x[:, 2:], 3: "three"})
    return Net(lambda self, x: self.fc(self.heads(x)["low"]), heads=heads, fc=nn.Linear(2, 3))


@model("keyword-only inner call")
def _() -> Any:
    inner = Do(lambda *, x, scale: x * scale)
    return Net(lambda self, x: self.fc(self.inner(x=x, scale=3)), inner=inner, fc=nn.Linear(4, 3))


@model("transformer with kwargs")
def _() -> Any:
    net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    kwargs = {"tgt": torch.randn(2, 4, 8), "tgt_mask": nn.Transformer.generate_square_subsequent_mask(4)}
    return net, (torch.randn(2, 5, 8),), {**kwargs, "tgt_is_causal": True}


@model("transformer encoder in eval")
def _() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)


@model("faster r-cnn")
def _() -> Any:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build

    small = {"min_size": 48, "max_size": 64, "rpn_post_nms_top_n_test": 8, "box_detections_per_img": 5}
    net = build(weights=None, weights_backbone=None, num_classes=3, **small).eval()
    return net, [images(3, 48, 64), images(3, 40, 48)]


@model("conv, then relu in place")
def _() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)), images(2, 3, 6, 6)


@model("functional y += 1")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        y += 1
        return self.b(y)

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3))


@model("resnet18")
def _() -> Any:
    from torchvision.models import resnet18

    return resnet18(num_classes=4), images(2, 3, 32, 32)


@model("vgg16")
def _() -> Any:
    from torchvision.models import vgg

    # Its own classifier has 120 million weights: the same layers, narrower.
    with torch.device("meta"):
        net = vgg.VGG(nn.Identity(), num_classes=4, init_weights=False)
    net.features, net.avgpool = vgg.make_layers(vgg.cfgs["D"]), nn.AdaptiveAvgPool2d(1)
    net.classifier[0], net.classifier[3], net.classifier[6] = nn.Linear(512, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    return net, images(1, 3, 32, 32)


@model("data-dependent while loop")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        while x.abs().sum() < 50:
            x = self.twice(x + self.fc(x).detach().clamp(-0.1, 0.1))
        return self.fc(x)

    return Net(run, fc=nn.Linear(4, 4), twice=Do(lambda x: x * 2))


@model("an unused layer")
def _() -> Any:
    return Net(lambda self, x: self.used(x), unused=nn.Linear(4, 4), used=nn.Linear(4, 3))


@model("mobilenet_v3_small")
def _() -> Any:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=4), images(2, 3, 32, 32)


@model("densenet121")
def _() -> Any:
    from torchvision.models import DenseNet

    return DenseNet(4, (6, 12, 24, 16), 8, 2, num_classes=4), images(2, 3, 32, 32)


@model("vit_b_16")
def _() -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 16, 12, 4, 16, 32, num_classes=4), images(2, 3, 32, 32)


assert len(MODELS) == PEERS

# --- what a layer can return


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


# --- what is overwritten after a layer returned it


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


def _silently(function: Callable[..., Any]) -> Callable[..., None]:
    def hook(*args: Any) -> None:
        function(*args)

    return hook


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
            y.register_hook(_silently(lambda grad: y.data.zero_()))
        return self.b(y)

    return Net(run, a=Do(lambda x: x + 1), b=Own(lambda self, x: x + self.weight)), torch.randn(
        2, 4, requires_grad=True
    )


# --- how a layer can be called


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
    net[1].register_forward_pre_hook(_silently(lambda module, args: args[0].mul_(2)))
    net[1].register_forward_hook(_silently(lambda module, args, output: output.add_(1)))
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
