"""Options that make no sense are refused when they are given: by name, with a way out, before any pass.

Each row of the table is an option of a public function, with values that it must not take.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope import attention, capture, census, collect, edit, profile, record
from tests.shared.awkward_models import Net
from tests.shared.sweep_helpers import sweep

NAN, HUGE = math.nan, 10**30
X = torch.ones(2, 5, 4)
MASK = torch.tensor([True, False])
SOMETHING = object()
UNREAL = (NAN, math.inf, 1j)
WORDS = ("", "x", b"x", ["x"], {"x": 1})
MODELS = (None, "net", 3, NAN, [], nn.Linear, [nn.ReLU()], torch.ones(2), SOMETHING, lambda x: x)
LAYERS = (
    "boyd", "body.weight", "zz*", "[", b"body", 0, -1, NAN, None, [], (), {}, ["body"], nn.ReLU(), nn.LSTM, float,
    SOMETHING, X, True, lambda name, module: False,
)  # fmt: skip
NUMBERS = (
    *WORDS, *UNREAL, 1.5, True, [], (), {}, range(0), [1.5], [None], [True, False], [[1]], MASK, torch.ones(2),
    SOMETHING, abs, nn.Linear,
)  # fmt: skip
SLICES = (slice("a"), slice(0, 1.5), slice(3, 1), slice(2, 2), slice(None, None, 0), slice(None, None, -1), slice(True))
FLAGS = (None, "", "no", b"x", 0, 1, -1, HUGE, 1.5, NAN, [], [True], {}, MASK, SOMETHING)
BYTES = (*WORDS, -1, -math.inf, NAN, 1j, True, [], [1], torch.ones(2), SOMETHING, abs)
TOKENS = (
    "", "the cat", b"x", 3, 1.5, NAN, True, [], (), [1, 2], ["the", None], {"the", "cat"}, {"the": 1}, X, SOMETHING,
)  # fmt: skip
KEYWORDS = (*WORDS[:4], *UNREAL, 0, True, [], (), [X], {"x"}, {0: X}, {None: X}, MASK, SOMETHING, abs)
VALUES = (None, *WORDS, [], (), [1.0], MODELS[-1], slice(1), SOMETHING)
PARTS = ((), 1.5, NAN, True, b"x", [0], {0}, (0, None), (True,), (1.5, "h"), MASK, SOMETHING, slice(1))


def net() -> nn.Module:
    def forward(self: Any, x: Any) -> Any:
        pytest.fail("the model was run")

    attn = nn.MultiheadAttention(4, 2, batch_first=True)
    return Net(forward, body=nn.Linear(4, 4), attn=attn, head=nn.Linear(4, 3)).eval()


def edits(method: str, *args: Any, **kwargs: Any) -> Callable[..., object]:
    return lambda model, **option: getattr(edit(model), method)(*args, **(kwargs | option))


def edits_with(method: str, *before: Any) -> Callable[..., object]:
    return lambda model, value: getattr(edit(model), method)(*before, value)


def sweeps(model: nn.Module, **option: Any) -> object:
    good = {"inputs": X, "layers": "body", "source": "zero", "metric": torch.sum, "progress": False}
    return sweep(model, **(good | option))


def sweeps_with(model: nn.Module, **option: Any) -> object:
    return hookscope.sweep(model, X, layers="body", source="zero", metric=torch.sum, **option)


def collects(model: nn.Module, layer: Any = "body", **option: Any) -> object:
    good = {"loader": [X], "to": "/nowhere/that/can/be/made", "progress": False} | option
    return collect(model, good.pop("loader"), layer, **good)


Row = tuple[Callable[..., object], str, tuple[Any, ...], str]
"""What is called with the model and the option, the option, values for it, and how the message names it."""

TABLE: dict[str, Row] = {
    "edit": (lambda _, model: edit(model), "model", MODELS, "model"),
    "edit.set layer": (lambda model, layer: edit(model).set(layer, 0), "layer", LAYERS, "layer|module"),
    "edit.set at": (
        edits("set", "body", 0), "at", (None, *WORDS[:3], {"x": 1}, *UNREAL, True, [], range(0), [1.5], [None], (0,
        "x"), (0, NAN), X, HUGE, SOMETHING, *SLICES), "at",
    ),
    "edit.set to": (
        edits("set", "body", 0), "to", (None, "", "x", b"output", 0, ["output"], {}, NAN, True, HUGE), "to=",
    ),
    "edit.set part": (edits("set", "body", 0), "part", PARTS, "part="),
    "edit.set calls": (edits("set", "body", 0), "calls", (*NUMBERS, 0, -1, [0], [1, -1], slice(1)), "calls="),
    "edit.set samples": (edits("set", "body", 0), "samples", (*NUMBERS, [1, 1], HUGE, *SLICES), "samples"),
    "edit.set positions": (edits("set", "body", 0), "positions", (*NUMBERS, -1, [0, -1], *SLICES), "positions="),
    "edit.set heads": (edits("set", "attn", 0), "heads", (*NUMBERS, -1, 2, [0, 2], [1, 1], HUGE, *SLICES), "head"),
    "edit.set another": (
        lambda model, call: edit(model).set("body", 0, **{call: 1}), "call", ("call", "row", "head"), "option",
    ),
    **{
        f"edit.{verb} value": (edits_with(verb, "body"), "value", values, verb)
        for verb, values in {
            "set": VALUES,
            "add": VALUES,
            "scale": VALUES,
            "swap": (*VALUES, 0, 1.5, NAN),
            "map": (None, 0, NAN, "relu", X, []),
            "mean": (0, "x", X, [], abs),
        }.items()
    },
    "sweep model": (lambda _, model: sweeps(model), "model", MODELS, "model"),
    "sweep kwargs": (sweeps_with, "kwargs", KEYWORDS, "kwargs"),
    "sweep options": (sweeps_with, "options", (*WORDS, *UNREAL, 0, True, [], {"part": 0}, X, SOMETHING), "options"),
    "sweep layers": (
        sweeps, "layers", ("boyd", b"body", 0, -1, NAN, None, [], (), {}, ["body", "x"], [["body"]], nn.LSTM, X,
        SOMETHING), "layer",
    ),
    "sweep source": (
        sweeps, "source", (None, *WORDS[:4], *UNREAL, 0, [X], ("mean",), ("mean", [X]), ("mean", X, X), ("zero", X),
        SOMETHING), "source",
    ),
    "sweep metric": (sweeps, "metric", (None, *WORDS, *UNREAL, 0, [sum], X, SOMETHING), "metric"),
    "sweep positions": (sweeps, "positions", (*NUMBERS, [1, 1], *SLICES), "positions="),
    "sweep channels": (sweeps, "channels", (*NUMBERS, [1, 1], *SLICES), "channels="),
    "sweep heads": (
        lambda model, heads: sweeps(model, layers="attn", heads=heads), "heads", (*NUMBERS, -1, 2, *SLICES), "head",
    ),
    "sweep axis": (
        lambda model, axis: sweeps(model, positions=0, axis=axis), "axis", (*WORDS, *UNREAL, 0, -1, 1.5, True, [], [1],
        SOMETHING), "axis=",
    ),
    "sweep part": (sweeps, "part", PARTS, "part="),
    "sweep tokens": (lambda model, tokens: sweeps(model, positions=0, tokens=tokens), "tokens", TOKENS, "tokens"),
    "sweep check": (sweeps, "check", (*WORDS, *UNREAL, 0, -1, 1.5, True, [], SOMETHING), "check="),
    "sweep max_bytes": (sweeps, "max_bytes", (*BYTES, 0), "max_bytes="),
    "sweep progress": (sweeps, "progress", FLAGS, "progress="),
    "attention model": (lambda _, model: attention(model, X), "model", MODELS, "model"),
    "attention tokens": (lambda model, tokens: attention(model, X, tokens=tokens), "tokens", TOKENS, "tokens"),
    "attention kwargs": (lambda model, **given: attention(model, X, **given), "kwargs", KEYWORDS, "kwargs"),
    "attention max_bytes": (lambda model, **given: attention(model, X, **given), "max_bytes", BYTES, "max_bytes="),
    "collect model": (lambda _, model: collects(model), "model", MODELS, "model"),
    "collect layer": (collects, "layer", LAYERS, "layer|module"),
    "collect loader": (collects, "loader", (None, "x", b"x", 0, NAN, True, X, SOMETHING, abs), "loader"),
    "collect to": (collects, "to", (None, "", " ", b"x", 0, NAN, True, [], ["x"], SOMETHING), "to="),
    "collect dtype": (collects, "dtype", (*WORDS, *UNREAL, 0, float, "float16", SOMETHING), "dtype="),
    "collect run": (collects, "run", (None, *WORDS, *UNREAL, 0, [abs], SOMETHING), "run="),
    "collect shard_bytes": (collects, "shard_bytes", (*BYTES, 0, None), "shard_bytes="),
    "collect max_bytes": (collects, "max_bytes", BYTES, "max_bytes="),
    "collect progress": (collects, "progress", FLAGS, "progress="),
    "profile model": (lambda _, model: profile(model, X), "model", MODELS, "model"),
    "profile kwargs": (lambda model, **given: profile(model, X, **given), "kwargs", KEYWORDS, "kwargs"),
    **{
        f"profile {option}": (lambda model, **given: profile(model, X, **given), option, values, f"{option}=")
        for option, values in {
            "backward": FLAGS,
            "loss": (*WORDS, *UNREAL, 0, True, [abs], X, SOMETHING),
            "repeats": (*WORDS, *UNREAL, 0, -1, 1.5, True, [], SOMETHING),
            "warmup": (None, *WORDS, *UNREAL, -1, 1.5, True, [], SOMETHING),
        }.items()
    },
    "capture model": (lambda _, model: capture(model), "model", MODELS, "model"),
    "capture layer": (lambda model, layer: capture(model, layer), "layer", LAYERS, "layer|module"),
    **{
        f"capture {option}": (capture, option, values, f"{option}=")
        for option, values in {
            "gradients": FLAGS,
            "inputs": FLAGS,
            "copy": FLAGS,
            "stats": FLAGS,
            "samples": (*WORDS, *UNREAL, -1, 1.5, True, [], [0], MASK, *SLICES, SOMETHING),
            "dtype": (*WORDS, *UNREAL, 0, float, "float16", torch.quint8, torch.int8, torch.bool, SOMETHING),
            "device": (*WORDS, *UNREAL, HUGE, -1, 1.5, "gpu", "cuda:99", [], SOMETHING),
            "max_bytes": BYTES,
            "stop": (None, *WORDS, *UNREAL, 0, -1, 1.5, [], SOMETHING),
        }.items()
    },
    "record model": (lambda _, model: record(model), "model", MODELS, "model"),
    "record layer": (lambda model, layer: record(model, layer), "layer", LAYERS, "layer|module"),
    **{
        f"record {option}": (record, option, values, named)
        for option, named, values in (
            (
                "kinds",
                "kind",
                (*WORDS, *UNREAL, 0, True, [None], [["forward"]], ["forward", 1], MASK, X[0, 0, 0], SOMETHING),
            ),
            ("tensors", "tensors|tensor 'x'", ("", "x", 0, NAN, True, [], [X], X, {"x": 1}, {"x": None}, SOMETHING)),
            ("parameters", "parameters=", FLAGS),
            ("values", "values=", FLAGS),
            ("max_events", "max_events", (None, *WORDS, *UNREAL, 0, -1, 1.5, True, [], SOMETHING)),
        )
    },
}  # fmt: skip
# What a message says beside the name: what to write instead, what there is, or that nothing can come of it.
WAY_OUT = (
    "[Gg]ive|[Pp]ass |Name |Call |[Uu]se |Create one|takes|write|must|needs|make one|did you mean|no layer|lists them|"
    "types? are|kinds? are|heads are|there (is|are)|is a |is it from a copy|is true for none|returned False for all|"
    "selects nothing|is empty|[Cc]ount from|[Cc]ount samples|twice|too large for any tensor|cannot use device"
)


@pytest.mark.parametrize("what", sorted(TABLE))
def test_what_makes_no_sense_is_refused_at_once(what: str) -> None:
    call, option, values, named = TABLE[what]
    for value in values:
        model = net()
        with pytest.raises((TypeError, ValueError, LookupError)) as caught:
            call(model, **{option: value})
        text = str(caught.value)
        assert re.search(named, text), f"{what}, {value!r}: {text!r} does not name it"
        assert re.search(WAY_OUT, text), f"{what}, {value!r}: {text!r} says nothing of what to do"
        assert not len(census(model))
        assert not any("forward" in vars(module) for module in model.modules())
    assert not Path("/nowhere").exists()
