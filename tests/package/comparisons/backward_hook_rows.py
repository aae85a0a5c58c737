"""Modules to compare hooks on."""

import torch
from torch import nn

from tests.shared.awkward_models import Net


def x(*shape):
    return torch.randn(shape, requires_grad=True)


def plain(*shape):
    return torch.randn(shape)


def named(forward):
    """Build a module whose arguments have names."""
    module = nn.Module()
    module.forward = forward
    return module


def pair(make):
    return Net(lambda m, v: make(m.a(v), m.b(v)), a=nn.Linear(4, 5), b=nn.Linear(4, 2))


# module, args, kwargs; legacy grad_input, grad_output, node; full grad_input, grad_output. "no" means not called.
W, B = (4, 5), (5,)
RESHAPED = "UnsafeViewBackward0" if torch.__version__ >= (2, 15) else "ViewBackward0"

ROWS = {
    "linear 1-D": (nn.Linear(4, 5), [x(4)], {}, [(1, 5)], [(5,)], RESHAPED, [(4,)], [(5,)]),
    "linear 2-D": (nn.Linear(4, 5), [x(3, 4)], {}, [B, (3, 4), W], [(3, 5)], "AddmmBackward0", [(3, 4)], [(3, 5)]),
    "linear 2-D data": (nn.Linear(4, 5), [plain(3, 4)], {}, [B, None, W], [(3, 5)], "AddmmBackward0", [None], [(3, 5)]),
    "no bias 2-D": (
        nn.Linear(4, 5, bias=False), [x(3, 4)], {}, [(3, 4), W], [(3, 5)], "MmBackward0", [(3, 4)], [(3, 5)],
    ),
    "conv2d": (
        nn.Conv2d(3, 8, 3), [x(2, 3, 6, 6)], {}, [(2, 3, 6, 6), (8, 3, 3, 3), (8,)], [(2, 8, 4, 4)],
        "ConvolutionBackward0", [(2, 3, 6, 6)], [(2, 8, 4, 4)],
    ),
    "conv2d data": (
        nn.Conv2d(3, 8, 3), [plain(2, 3, 6, 6)], {}, [None, (8, 3, 3, 3), (8,)], [(2, 8, 4, 4)],
        "ConvolutionBackward0", [None], [(2, 8, 4, 4)],
    ),
    "conv2d no bias": (
        nn.Conv2d(3, 8, 3, bias=False), [x(2, 3, 6, 6)], {}, [(2, 3, 6, 6), (8, 3, 3, 3), None], [(2, 8, 4, 4)],
        "ConvolutionBackward0", [(2, 3, 6, 6)], [(2, 8, 4, 4)],
    ),
    "relu": (nn.ReLU(), [x(2, 3)], {}, [(2, 3)], [(2, 3)], "ReluBackward0", [(2, 3)], [(2, 3)]),
    "batch norm train": (
        nn.BatchNorm2d(3), [x(2, 3, 4, 4)], {}, [(2, 3, 4, 4), (3,), (3,)], [(2, 3, 4, 4)],
        "NativeBatchNormBackward0", [(2, 3, 4, 4)], [(2, 3, 4, 4)],
    ),
    "embedding": (
        nn.Embedding(7, 3), [torch.randint(7, (2, 5))], {}, [(7, 3)], [(2, 5, 3)], "EmbeddingBackward0", [None],
        [(2, 5, 3)],
    ),
    "max pool with indices": (
        nn.MaxPool2d(2, return_indices=True), [x(1, 2, 4, 4)], {}, [(1, 2, 4, 4)], [(1, 2, 2, 2)],
        "MaxPool2DWithIndicesBackward0", [(1, 2, 4, 4)], [(1, 2, 2, 2), None],
    ),
    "dropout train": (nn.Dropout(), [x(2, 3)], {}, [(2, 3), None], [(2, 3)], "MulBackward0", [(2, 3)], [(2, 3)]),
    "identity": (nn.Identity(), [x(2, 3)], {}, "no", "no", "", [(2, 3)], [(2, 3)]),
    "sequential ends in relu": (
        nn.Sequential(nn.Linear(4, 5), nn.ReLU()), [x(3, 4)], {}, [(3, 5)], [(3, 5)], "ReluBackward0", [(3, 4)],
        [(3, 5)],
    ),
    "sequential ends in linear, data": (
        nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), [plain(3, 4)], {}, [(2,), (3, 5), (5, 2)], [(3, 2)],
        "AddmmBackward0", [None], [(3, 2)],
    ),
    "tuple": (
        pair(lambda a, b: (a, b)), [x(3, 4)], {}, [B, (3, 4), W], [(3, 5)], "AddmmBackward0", [(3, 4)],
        [(3, 5), (3, 2)],
    ),
    "chunk": (
        Net(lambda m, v: v.chunk(2, 1)), [x(3, 4)], {}, [(3, 4)], [(3, 2), (3, 2)], "SplitBackward0", [(3, 4)],
        [(3, 2), (3, 2)],
    ),
    "list": (pair(lambda a, b: [a, b]), [x(3, 4)], {}, [B, (3, 4), W], [(3, 5)], "AddmmBackward0", "no", "no"),
    "dict": (
        pair(lambda a, b: {"a": a, "b": b}), [x(3, 4)], {}, [B, (3, 4), W], [(3, 5)], "AddmmBackward0", "no", "no",
    ),
    "nested": (
        pair(lambda a, b: (a, {"b": b})), [x(3, 4)], {}, [B, (3, 4), W], [(3, 5)], "AddmmBackward0", [(3, 4)],
        [(3, 5), None],
    ),
    "x*y": (
        named(lambda v, w: v * w), [x(2, 3), x(2, 3)], {}, [(2, 3), (2, 3)], [(2, 3)], "MulBackward0",
        [(2, 3), (2, 3)], [(2, 3)],
    ),
    "x*data": (
        named(lambda v, w: v * w), [x(2, 3), plain(2, 3)], {}, [(2, 3), None], [(2, 3)], "MulBackward0",
        [(2, 3), (2, 3)], [(2, 3)],
    ),
    "x+y+z": (
        named(lambda u, v, w: u + v + w), [x(2, 3), x(2, 3), x(2, 3)], {}, [(2, 3)] * 2, [(2, 3)], "AddBackward0",
        [(2, 3)] * 3, [(2, 3)],
    ),
    "x, y=": (
        named(lambda v, y: v * y), [x(2, 3)], {"y": x(2, 3)}, [(2, 3)] * 2, [(2, 3)], "MulBackward0", [(2, 3)],
        [(2, 3)],
    ),
    "keywords only": (
        named(lambda v, y: v * y), [], {"v": x(2, 3), "y": x(2, 3)}, [(2, 3)] * 2, [(2, 3)], "MulBackward0", [],
        [(2, 3)],
    ),
    "no inputs": (
        Net(lambda m: m.a.weight * m.a.weight, a=nn.Linear(3, 2)), [], {}, [(2, 3)] * 2, [(2, 3)], "MulBackward0", [],
        [(2, 3)],
    ),
    "list input": (
        named(lambda vs: vs[0] + vs[1]), [[x(2, 3), x(2, 3)]], {}, [(2, 3)] * 2, [(2, 3)], "AddBackward0", [None],
        [(2, 3)],
    ),
    "lstm": (
        nn.LSTM(4, 5, batch_first=True), [x(2, 3, 4)], {}, [(3, 2, 5)], [(2, 3, 5)], "TransposeBackward0",
        [(2, 3, 4)], [(2, 3, 5), None],
    ),
    "attention": (
        nn.MultiheadAttention(4, 2, batch_first=True), [x(2, 3, 4), x(2, 3, 4), x(2, 3, 4)], {}, [(3, 2, 4)],
        [(2, 3, 4)], "TransposeBackward0", [(2, 3, 4)] * 3, [(2, 3, 4), (2, 3, 3)],
    ),
}  # fmt: skip


def list_shapes(view):
    return ["no" if view.shapes[name] is None else list(view.shapes[name]) for name in ("grad_input", "grad_output")]
