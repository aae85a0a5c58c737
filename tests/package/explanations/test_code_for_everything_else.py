"""The code that `explain` writes for recordings, censuses, comparisons and graphs finds what they found."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import capture, census, compare_backward_hooks, feature_grid, gradient_flow, graph, record
from hookscope.explanations.explain import Explanation, explain
from tests.shared.awkward import MODELS, Do, difference
from tests.shared.explained import checked, run, watched

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like

RECORDED = ["shared conv called twice", "LSTM tuple", "dict output", "resnet18", "branches, one without gradient"]


# --- record


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(
    "options", [{}, {"kinds": ("forward", "full_backward")}, {"kinds": "forward_pre"}, {"parameters": True}], ids=str
)
def test_a_recording(name: str, options: dict[str, Any]) -> None:
    if name == "resnet18":
        options = {"kinds": ("forward_pre", "forward")}  # full backward hooks do not go with in-place operations
    backward = "full_backward" in options.get("kinds", ("full_backward",))
    recording = watched(MODELS[name](), lambda model: record(model, **options), backward=backward)
    model, args, _ = MODELS[name]()
    for obj in (recording, record(model, **options)):
        assert run(checked(obj), model, args)["events"] == [(e.kind, e.name) for e in recording.events]
    assert recording.events


def test_a_recording_of_some_layers_and_their_parameters() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.ones(2, 4),)
    model[0].bias.requires_grad_(False)
    recording = watched((model, args, {}), lambda m: record(m, "0", "1", parameters=True))
    names = [(e.kind, e.name) for e in recording.events]
    assert ("post_accumulate_grad", "0.weight") in names
    assert run(checked(recording), model, args)["events"] == names


def test_a_recording_says_what_it_leaves_out() -> None:
    model, x = nn.Sequential(nn.Linear(4, 2)), torch.ones(1, 4)

    def mine(module: nn.Module, args: Any, output: Any) -> None:
        pass

    handle = model[0].register_forward_hook(mine)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model, optimizers=optimizer) as recording:
        recording.watch(model(x), "y").sum().backward()
        optimizer.step()
    handle.remove()
    code = checked(recording)
    head = code.partition("layers =")[0].replace("\n# ", " ")
    for left_out in ("your hook mine", "tensor y", "step_pre SGD", "step_post SGD"):
        assert left_out in head
    own = [(e.kind, e.name) for e in recording.events if not e.hook and e.name in ("", "0")]
    assert run(code, model, (x,))["events"] == own


class Callable_:  # noqa: N801
    """A hook that is an object."""

    def __call__(self, *given: Any) -> None:
        pass


def hook_of_mine(*given: Any) -> None:
    """Do nothing."""


def rows(found: hookscope.census) -> list[tuple[str, str | None, str]]:
    return [(entry.kind, entry.layer, entry.callable) for entry in found]


# --- census


def test_a_census() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)))
    assert run(checked(census(model)), model, ())["hooks"] == []
    model[0].register_forward_hook(hook_of_mine)
    model[0].register_forward_pre_hook(Callable_())
    model[1][0].register_full_backward_hook(hook_of_mine)
    model.register_full_backward_pre_hook(hook_of_mine)
    assert run(checked(census(model)), model, ())["hooks"] == rows(census(model))
    model[0].weight.register_hook(hook_of_mine)
    model[0].bias.register_post_accumulate_grad_hook(hook_of_mine)
    model[1].register_state_dict_pre_hook(hook_of_mine)
    model[1][1].register_backward_hook(hook_of_mine)
    anywhere = nn.modules.module.register_module_forward_hook(hook_of_mine)
    try:
        found = census(model)
        assert len(found) == 9
        assert run(checked(found), model, ())["hooks"] == rows(found)
    finally:
        anywhere.remove()


def test_a_census_says_what_is_not_on_the_model() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(hook_of_mine)
    code = checked(census(model, optimizer))
    assert "optimizer step_pre on (SGD)" in code
    assert run(code, model, ())["hooks"] == []


# --- backward hooks, graph, flow


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Linear(4, 5), torch.randn(3, 4, requires_grad=True)),
        (nn.Linear(4, 5), torch.randn(3, 4)),
        (nn.LSTM(4, 5), torch.randn(2, 3, 4, requires_grad=True)),
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4, requires_grad=True)),
        (Do(lambda x: {"a": x * 2}), torch.randn(3, requires_grad=True)),
    ],
    ids=["linear", "no input gradient", "lstm", "sequential", "dict"],
)
def test_a_comparison(model: nn.Module, x: Tensor) -> None:
    both = compare_backward_hooks(model, x)
    grads = run(checked(both), model, (x,))["grads"]
    for view in (both.legacy, both.full):
        assert (view.kind in grads) == view.called
        if view.called:
            for found, known in zip(grads[view.kind], (view.grad_input, view.grad_output), strict=True):
                assert not difference(found, known, view.kind)
    assert list(run(checked(both), model, (x,))["grads"]) == list(grads), "it runs a second time"


@pytest.mark.parametrize("reduce", ["", "sum", "mean"])
def test_a_graph(reduce: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4, requires_grad=True)
    output = model(x * 2 + x)
    shown = graph(getattr(output, reduce)() if reduce else output, model=model)
    names = run(checked(shown), nn.Sequential(Do(lambda x: x * 2 + x), *model), (x,))
    assert [node.name().removeprefix("torch::autograd::") for node in names["nodes"]] == [n.name for n in shown.nodes]
    assert names["edges"] == [(edge.source, edge.target) for edge in shown.edges]


def test_a_graph_of_a_leaf(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 2)
    run(checked(graph(model.weight, model=model)), model, ())
    run(checked(graph(torch.ones(2, requires_grad=True))), model, (torch.ones(2, requires_grad=True),))
    assert capsys.readouterr().out.count("AccumulateGrad") == 2


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["shared conv called twice", "LSTM tuple", "NaN and inf", "conv, then relu in place"])
def test_gradient_flow(name: str, gradients: bool) -> None:
    seen = watched(MODELS[name](), lambda model: capture(model, gradients=gradients), backward=gradients)
    picture = gradient_flow(seen)
    model, args, _ = MODELS[name]()
    flow = run(checked(picture), model, args)["flow"]
    calls = [call for layer in seen.values() for call in layer.calls]
    by_label = {row["call"]: row for row in picture.rows}
    assert [row[0] for row in flow] == [call.layer for call in calls]
    for row, call in zip(flow, calls, strict=True):
        known = by_label[call.label]
        assert row[1] == pytest.approx((known["mean |x|"], known["max |x|"], known["zeros %"]))
        if gradients and known["mean |grad|"] is not None:
            assert row[2] == pytest.approx((known["mean |grad|"], known["max |grad|"], known["grad zeros %"]))


# --- the explanation itself


def test_an_explanation_shows_its_code() -> None:
    model = nn.Sequential()
    model.add_module("<img src=x onerror=alert(1)>", nn.Linear(4, 3))
    shown = explain(capture(model))
    assert isinstance(shown, Explanation)
    assert str(shown) == shown.code == repr(shown) + "\n"
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    html = bundle["text/html"]
    assert "<img" not in html
    assert shown.code in unescape(html)
    assert "<figcaption>Sequential: what flowed" in html


@pytest.mark.parametrize("obj", [3, None, nn.Linear(1, 1), capture, feature_grid(torch.rand(1, 2, 3, 3))])
def test_what_cannot_be_explained(obj: Any) -> None:
    with pytest.raises(TypeError, match=r"capture"):
        explain(obj)
