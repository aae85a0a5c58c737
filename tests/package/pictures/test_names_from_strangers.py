"""A name with characters that cannot be seen leaves what stands around it as it is, and so does a very long one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any
from unicodedata import category

import pytest
import torch
from torch import nn

import hookscope
from hookscope.pictures import Table

HOSTILE = "a\u202eb\u2066c\u2028d\x1b[31me\x7ff\u200bg"
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def hidden(text: str) -> set[str]:
    return {letter for letter in text if category(letter) in HIDDEN} - {"\n"}


Own = type(f"Own{HOSTILE}", (nn.Sequential,), {"__module__": f"m{HOSTILE}"})


def model() -> nn.Module:
    net = Own()
    for number, layer in enumerate((nn.Linear(2, 2), nn.ReLU(), Own(nn.Linear(2, 2)))):
        net.add_module(f"{HOSTILE}{number}", layer)
    return net


def hook(*args: object) -> None:
    """Do nothing."""


hook.__name__ = hook.__qualname__ = f"hook{HOSTILE}"
X = torch.ones(2, 2, requires_grad=True)


def captured() -> Any:
    with hookscope.capture(net := model(), gradients=True, inputs=True) as seen:
        net(X).sum().backward()
    return seen


def recorded() -> Any:
    net = model()
    net[0].register_forward_hook(hook)
    with hookscope.record(net) as recording:
        net(X).sum().backward()
    return recording


def census() -> Any:
    net = model()
    net[0].register_forward_hook(hook)
    net[1].forward = hook  # which is a note
    return hookscope.census(net)


def edited() -> Any:
    net = model()
    with hookscope.edit(net) as edit:
        edit.scale(f"{HOSTILE}0", 1.0)
        net(X)
    return edit


def swept() -> Any:
    return hookscope.sweep(model(), X.detach(), layers="*", source=2 * X.detach(), metric=lambda out: out.sum())


def attended() -> Any:
    net = Own(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)).eval()
    return hookscope.attention(net, torch.ones(1, 3, 4), tokens=["the", HOSTILE, "sat"])


def compared() -> Any:
    return hookscope.compare_backward_hooks(model(), X)


SHOWN: dict[str, Callable[[], Any]] = {
    "table": lambda: Table([{HOSTILE: HOSTILE, "b": [HOSTILE]}], HOSTILE),
    "picture": lambda: hookscope.feature_grid(torch.ones(1, 1, 2, 2), title=HOSTILE, names=[HOSTILE]),
    "capture": captured,
    "calls": lambda: captured().calls,
    "layer": lambda: captured()[f"{HOSTILE}0"],
    "gradient flow": lambda: hookscope.gradient_flow(captured()),
    "recording": recorded,
    "timeline": lambda: recorded().picture(),
    "call tree": lambda: recorded().call_tree(),
    "census": census,
    "entry of a census": lambda: census()[0].__str__(),
    "edit": edited,
    "sweep": swept,
    "attention": attended,
    "graph": lambda: hookscope.graph(X.sum(), names={HOSTILE: X}),
    "tree": lambda: hookscope.tree(model()),
    "profile": lambda: hookscope.profile(model(), X, repeats=1),
    "comparison": compared,
    "diagnosis": lambda: hookscope.diagnose(model(), f"{HOSTILE}0", X),
    "code of a capture": lambda: hookscope.explain(captured()),
    "code of an edit": lambda: hookscope.explain(edited()),
}


@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_what_cannot_be_seen_is_written_out(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = make()
        bundle = getattr(shown, "_repr_mimebundle_", dict)()
    bundle, *more = bundle if isinstance(bundle, tuple) else (bundle,)
    texts = {"text": shown if isinstance(shown, str) else repr(shown), "metadata": json.dumps(more, ensure_ascii=False)}
    texts |= {kind: text for kind, text in bundle.items() if isinstance(text, str)}
    assert {kind: hidden(text) for kind, text in texts.items() if hidden(text)} == {}
    assert r"\u202e" in texts["text"]
