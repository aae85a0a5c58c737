"""What plain torch lines cannot say is one sentence: what it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import at, capture, edit, explain
from tests.package.interp.edits.test_what_an_edit_does import Held
from tests.shared.awkward import Do, Net

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("obj", [3, None, nn.Linear(1, 1), capture, hookscope.feature_grid(torch.rand(1, 2, 3, 3))])
def test_what_is_neither_a_capture_nor_an_edit(obj: Any) -> None:
    with pytest.raises(TypeError, match=r"a capture or an edit, not of a \w+\. Pass what hookscope\.capture"):
        explain(obj)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"stats": True}, "stats"),
        ({"copy": False}, "copy"),
        ({"samples": 0}, "samples"),
        ({"dtype": torch.float64}, "dtype"),
        ({"device": "cpu"}, "device"),
        ({"stop": True}, "stop"),
    ],
)
def test_options_of_a_capture(options: Any, name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"explain cannot write code for {name}=\. Capture without it, and explain that"
    ):
        explain(capture(nn.Linear(4, 4), **options))


def test_a_call_that_ended_with_an_exception() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(4, 4), Do(explode))
    with pytest.raises(ZeroDivisionError), capture(model) as seen:
        model(X)
    with pytest.raises(
        ValueError, match=r"cannot write code for this capture: call 1 raised an exception .* another pass"
    ):
        explain(seen)


def test_a_container_that_contains_itself() -> None:
    def around(x: Tensor) -> dict[str, Any]:
        value: dict[str, Any] = {"x": x}
        value["self"] = value
        return value

    with capture(net := Do(around), "") as seen:
        net(X)
    with pytest.raises(
        ValueError, match=r"explain cannot write code for call \(root\), because its inputs or outputs contain a dict"
    ):
        explain(seen)


EDITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "noise": (lambda e: e.noise("one", 0.5), r"cannot write code for noise \(edit 1\)\. Use map with a function"),
    "freeze": (lambda e: e.freeze("one"), r"code for freeze \(edit 1\)"),
    "mask": (lambda e: e.mask("one", X[0, 0] > 0), r"code for mask \(edit 1\)"),
    "project_out": (lambda e: e.project_out("one", X[0, 0]), r"code for project_out \(edit 1\)"),
    "rows and an index": (
        lambda e: e.set("one", 0, at[0], samples=1),
        r"samples= or heads= with at\[\.\.\.\] \(edit 1\)",
    ),
    "heads": (
        lambda e: e.set("attn", 0, heads=1),
        "deep inside a value or the attention of layer 'attn'. Edit a whole",
    ),
    "an object": (lambda e: e.set("held", 0, part="h"), "the attention of layer 'held'"),
    "deep inside": (lambda e: e.set("deep", 0, part=(0, 1)), "the attention of layer 'deep'"),
    "counted from the end": (lambda e: e.set("attn", 0, part=-2), "the attention of layer 'attn'"),
    "a gradient of a part": (lambda e: e.set("attn", 0, to="grad", part=0), "the attention of layer 'attn'"),
}


@pytest.mark.filterwarnings("ignore:hookscope")
@pytest.mark.parametrize("name", EDITS)
def test_edits(name: str) -> None:
    write, said = EDITS[name]
    net = Net(
        lambda self, x: self.last([self.deep(self.held(self.attn(*[self.one(x)] * 3)[0]).h)[0][1]]),
        one=nn.Linear(4, 4),
        attn=nn.MultiheadAttention(4, 2, batch_first=True),
        held=Do(lambda x: Held(x * 1, {"p": x * 3})),
        deep=Do(lambda x: ((x, x * 2), x)),
        last=Do(lambda items: items[0] * 2),
    )
    with edit(net) as e:
        write(e)
        for _ in range(1 + (name == "freeze")):
            (net(X) + net.one.bias).sum().backward()
    with pytest.raises(ValueError, match=said):
        explain(e)


def test_positions_and_an_edit_that_never_ran() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
    with edit(net) as e:
        e.set("1", 0, positions=1)
        net(torch.tensor([[1, 2, 3]]))
    with pytest.raises(
        ValueError, match=r"cannot write code for positions= \(edit 1\)\. Use an index, such as at\[:, 3\]"
    ):
        explain(e)
    later = edit(net)
    later.set("1", 0)
    with pytest.raises(ValueError, match=r"an edit that ran\. Run the model inside its with block first"):
        explain(later)
