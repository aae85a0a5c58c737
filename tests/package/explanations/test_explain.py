"""The code that `explain` writes, run on its own, finds what the helper object found."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from html import unescape
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import capture, census, compare_backward_hooks, feature_grid, gradient_flow, graph, record
from hookscope.captures.capture import Capture, NotCapturedError
from hookscope.captures.form import Stats
from hookscope.explanations.explain import Explanation, explain
from tests.shared.awkward import MODELS, RESIZES, Case, Do, Net, Own, difference, tensors_in

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait for each other when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- running what was written


def checked(obj: object) -> str:
    """Explain, and check what holds for all code that is written."""
    explanation = explain(obj)
    code = str(explanation)
    assert "hookscope" not in code
    assert "\t" not in code
    assert not [line for line in code.splitlines() if len(line) > 90]
    assert not [line for line in code.splitlines() if line != line.rstrip()]
    tree = ast.parse(code)
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert set(imports) <= {"import torch", "from torch import nn"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert ("torch" in used, "nn" in used) == ("import torch" in imports, "from torch import nn" in imports)
    assert code == str(explain(obj)), "written differently the second time"
    return code


def run(code: str, model: nn.Module, inputs: tuple[Any, ...], seed: int = 1) -> dict[str, Any]:
    """Run the code with nothing but `model` and `inputs`; what it leaves behind."""
    names: dict[str, Any] = {"model": model, "inputs": inputs}
    before = len(census(model))
    torch.manual_seed(seed)
    try:
        exec(compile(code, "explained", "exec"), names)
    finally:
        assert len(census(model)) == before
    return names


def total(output: Any) -> Tensor:
    """The loss of the written code."""
    return sum(t.sum() for t in tensors_in(output) if t.requires_grad)


def watched(case: Case, make: Callable[[nn.Module], AbstractContextManager[Any]], backward: bool = True) -> Any:
    """Run a case inside `make(model)`, forward and backward."""
    model, args, _ = case
    torch.manual_seed(1)
    with make(model) as seen:
        loss = total(model(*args))
        if backward and isinstance(loss, Tensor):
            loss.backward()
    return seen


def of_call(call: Any, what: str) -> Any:
    try:
        return getattr(call, what)
    except NotCapturedError:
        return None


def assert_same_stats(found: Any, expected: Stats, where: str) -> None:
    assert list(found) == list(Stats._fields), where
    for key, value in found.items():
        known = getattr(expected, key)
        same = math.isclose(value, known, rel_tol=1e-4, abs_tol=1e-6) if isinstance(value, float) else value == known
        assert same or (value != value and known != known), f"{where}: {key} is {value}, not {known}"


def assert_same(names: dict[str, Any], seen: Capture, *, gradients: bool, inputs: bool) -> None:
    """Compare what the code found with what the capture kept."""
    assert names["order"] == seen.order
    outputs = names["outputs"]
    assert set(outputs) == {call.layer for call in seen.calls}
    for name, layer in seen.items():
        assert len(outputs[name]) == len(layer.calls), name
        for number, call in enumerate(layer.calls):
            assert not difference(outputs[name][number], of_call(call, "output"), call.label)
            if gradients:
                found = names["grads"][name][number]
                known = tensors_in(of_call(call, "grad"))
                assert not difference([t for t in tensors_in([found]) if t is not None], known, f"grad {call.label}")
            if inputs:
                assert not difference(names["received"][name][number], (call.args, call.kwargs), f"args {call.label}")


# --- capture: the awkward models

# They take kwargs; or what they return has no sum to go back from; or they are large, and no different.
LEFT_OUT = {"transformer with kwargs", "vgg16", "densenet121", "vit_b_16", "mobilenet_v3_small"}
EACH = [
    name
    for name in MODELS
    if name not in LEFT_OUT and name not in RESIZES and (not name.startswith("a view over") or "mul_" in name)
]


@pytest.mark.parametrize("name", EACH)
def test_a_capture_that_has_run(name: str) -> None:
    build, quiet = MODELS[name], "faster" in name
    options = {"gradients": not quiet, "keep": "copies"}

    seen = watched(build(), lambda model: capture(model, **options), backward=not quiet)
    model, args, _ = build()
    assert_same(run(checked(seen), model, args), seen, gradients=not quiet, inputs=False)


@pytest.mark.parametrize("name", EACH[::2])
def test_a_capture_of_inputs(name: str) -> None:
    seen = watched(MODELS[name](), lambda model: capture(model, inputs=True, keep="copies"), backward=False)
    model, args, _ = MODELS[name]()
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=True)


@pytest.mark.parametrize("name", ["LSTM tuple", "dict output", "nested outputs", "torch.return_types", "resnet18"])
@pytest.mark.parametrize("inputs", [False, True])
def test_a_capture_that_has_not_run_is_ready_for_structures(name: str, inputs: bool) -> None:
    model, args, _ = MODELS[name]()
    code = checked(capture(model, gradients=True, inputs=inputs))
    seen = watched(MODELS[name](), lambda model: capture(model, gradients=True, inputs=inputs))
    assert_same(run(code, model, args), seen, gradients=True, inputs=inputs)


def test_there_are_enough_models() -> None:
    assert len(EACH) > 60


@pytest.mark.parametrize("name", ["conv, then relu in place", "LSTM tuple", "integers", "zero-dimensional", "resnet18"])
@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0},
        {"sample": slice(0, 2)},
        {"dtype": torch.float16},
        {"device": "cpu"},
        {"sample": 1, "dtype": torch.float64, "device": "cpu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("ran", [False, True])
def test_forms(name: str, options: dict[str, Any], ran: bool) -> None:
    def make(model: nn.Module) -> Capture:
        return capture(model, gradients=True, inputs=True, **options)

    seen = watched(MODELS[name](), make)
    model, args, _ = MODELS[name]()
    code = checked(seen if ran else make(model))
    names = run(code, model, args)
    assert_same(names, seen, gradients=True, inputs=True)
    tensor = next(t for outputs in names["outputs"].values() for t in tensors_in(outputs))
    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), "more is held than is kept"


@pytest.mark.parametrize("name", ["resnet18", "LSTM tuple", "NaN and inf", "no elements", "integers", "complex"])
@pytest.mark.parametrize("ran", [False, True])
def test_statistics(name: str, ran: bool) -> None:
    def make(model: nn.Module) -> Capture:
        return capture(model, gradients=True, inputs=True, keep="stats")

    seen = watched(MODELS[name](), make)
    model, args, _ = MODELS[name]()
    names = run(checked(seen if ran else make(model)), model, args)
    assert names["order"] == seen.order

    def flat(value: Any) -> list[Any]:
        if isinstance(value, Stats) or (isinstance(value, dict) and "mean_abs" in value):
            return [value]
        items = value.values() if isinstance(value, dict) else value
        return [found for item in items for found in flat(item)] if isinstance(value, (tuple, list, dict)) else []

    compared = 0
    for layer in seen.values():
        for number, call in enumerate(layer.calls):
            pairs = [
                (names["stats"][call.layer][number], of_call(call, "stats")),
                (names["grad_stats"][call.layer][number], of_call(call, "grad_stats")),
                (names["received"][call.layer][number], (call.args, call.kwargs)),
            ]
            for found, known in pairs:
                for one, other in zip(flat([found]), flat([known]), strict=True):
                    assert_same_stats(one, other, call.label)
                    compared += 1
    assert compared > 4


# --- capture: which layers


@pytest.mark.parametrize(
    ("which", "rule"),
    [
        ((), "if not list(module.children())"),
        (("", "**"), ""),
        ((nn.Conv2d,), "if isinstance(module, nn.Conv2d)"),
        ((nn.Conv2d, nn.BatchNorm2d), "if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))"),
        (("layer2.**",), "if name.startswith('layer2.')"),
        (("layer2.*.conv*", "layer2.*.bn*", "layer2.0.downsample.*", "layer2.*.relu", "layer3.0.conv1"), None),
        (("layer1.*.*", "layer2.*.conv*", "layer2.*.bn*"), None),
    ],
)
def test_many_layers_are_chosen_by_a_rule_where_there_is_one(which: tuple[Any, ...], rule: str | None) -> None:
    model, args, _ = MODELS["resnet18"]()
    seen = capture(model, *which)
    code = checked(seen)
    assert ("named_modules()" in code) == (rule is not None)
    assert (rule or "") in code
    model.eval()
    with seen:
        model(*args)
    names = run(checked(seen), model, args)
    assert set(names["layers"].values()) == set(seen._layers.values())
    assert_same(names, seen, gradients=False, inputs=False)


def test_layers_inside_layers_are_in_the_order_in_which_they_begin() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), nn.Linear(4, 2))
    args = (torch.randn(2, 4),)
    for gradients in (False, True):
        with capture(model, "**", "", gradients=gradients) as seen:
            total(model(*args)).backward()
        names = run(checked(seen), model, args)
        assert names["order"] == ["", "0", "0.0", "0.1", "1"]
        assert_same(names, seen, gradients=gradients, inputs=False)


@pytest.mark.parametrize(
    "name",
    ["it's", 'a "quoted" name', "back\\slash", "новый", "line\nbreak", "<img src=x>", "x" * 300, "#2", "{x}", "%s"],
)
def test_names_of_any_kind(name: str) -> None:
    model, args = nn.Sequential(), (torch.randn(2, 4),)
    model.add_module(name, nn.Linear(4, 3))
    with capture(model, name) as seen:
        model(*args)
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=False)
    with record(model) as recording:
        total(model(*args)).backward()
    assert run(checked(recording), model, args)["events"] == [(e.kind, e.name) for e in recording.events]


def test_what_a_name_holds_is_no_import() -> None:
    model = nn.Sequential()
    model.add_module("my torch", nn.Sequential(nn.Linear(4, 3)))
    model.add_module("x = nn", nn.Sequential(nn.Linear(4, 3)))
    assert "import" not in checked(capture(model, "my torch.0", "x = nn.0"))


def test_a_layer_under_the_name_it_was_asked_for_by() -> None:
    relu = nn.ReLU()
    model, args = nn.Sequential(nn.Linear(4, 4), relu, relu), (torch.randn(2, 4),)
    with capture(model, "2") as seen:
        model(*args)
    names = run(checked(seen), model, args)
    assert names["order"] == ["2", "2"]
    assert_same(names, seen, gradients=False, inputs=False)


def test_many_layers_one_of_them_under_its_second_name() -> None:
    relu = nn.ReLU()
    model, args = nn.Sequential(*(nn.Linear(4, 4) for _ in range(14)), relu, relu), (torch.randn(2, 4),)
    with capture(model, "?", "1[0-3]", "15") as seen:
        model(*args)
    assert seen.order[-2:] == ["15", "15"]
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=False)


def test_a_model_that_returns_another_structure_than_its_layers() -> None:
    def forward(self: nn.Module, x: Tensor) -> Any:
        y, (h, _) = self.lstm(x)
        return {"all": [self.fc(y)], "last": h}

    model, args = Net(forward, lstm=nn.LSTM(4, 5), fc=nn.Linear(5, 3)), (torch.randn(2, 3, 4),)
    for which in ((), ("lstm",), ("fc",), ("", "**")):
        seen = watched((model, args, {}), lambda m, which=which: capture(m, *which, gradients=True))
        assert any(grad is not None for call in seen.calls for grad in tensors_in(call.grad))
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)


# --- capture: what is written is short, and leaves nothing behind


def test_two_layers_take_about_fifteen_lines() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    for seen in (capture(model), watched((model, (torch.ones(2, 4),), {}), capture)):
        code = checked(seen)
        assert len([line for line in code.splitlines() if line]) <= 17
        assert "output.detach().clone()" in code
        assert "register_forward_hook(" in code
        assert "handle.remove()" in code
        assert "def map_tensors" not in code


def test_what_is_kept_is_safe_from_in_place_operations() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (torch.randn(8, 4),)
    outputs = run(checked(capture(model)), model, args)["outputs"]
    assert (outputs["0"][0] < 0).any()
    assert not outputs["0"][0].requires_grad


def test_hooks_come_off_when_the_model_raises() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model, args = nn.Sequential(nn.Linear(4, 4), Do(explode), nn.Linear(4, 4)), (torch.ones(2, 4),)
    objects: list[Any] = [
        capture(model, gradients=True, inputs=True),
        capture(model, "", "**"),
        record(model, parameters=True),
        compare_backward_hooks(nn.Linear(4, 4), torch.ones(2, 4)),
    ]
    for obj in objects:
        with pytest.raises(ZeroDivisionError):
            run(checked(obj), model, args)  # asserts that no hook is left
        assert len(census(model)) == 0


def test_hooks_on_outputs_come_off_too() -> None:
    model = Net(lambda self, x: self.b(x + self.own()), own=Own(lambda self: self.weight), b=nn.Linear(4, 3))
    args = (torch.randn(2, 4),)
    seen = watched((model, args, {}), lambda model: capture(model, gradients=True))
    run(checked(seen), model, args)
    assert not model.own.weight._backward_hooks


def test_an_exception_that_the_model_catches() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        try:
            x = self.inner(x)
        except ZeroDivisionError:
            x = self.a(x)
        return self.b(x)

    inner = nn.Sequential(nn.Linear(4, 4), Do(explode))
    model, args = Net(forward, inner=inner, a=nn.Linear(4, 4), b=nn.Linear(4, 3)), (torch.ones(2, 4),)
    for which in ((), ("**",)):
        seen = watched((model, args, {}), lambda m, which=which: capture(m, *which, gradients=True))
        model.zero_grad()
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)


def test_no_backward_runs_where_none_has_run() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)
    with torch.no_grad():
        seen = watched((model, args, {}), lambda model: capture(model, gradients=True), backward=False)
        recording = watched((model, args, {}), record, backward=False)
        assert "No gradient has reached your layers" in checked(seen)
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)
        assert "No backward pass ran" in checked(recording)
        assert run(checked(recording), model, args)["events"] == [(e.kind, e.name) for e in recording.events]


# --- record

RECORDED = ["shared conv called twice", "LSTM tuple", "dict output", "resnet18", "branches, one without gradient"]


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


# --- census


class Callable_:  # noqa: N801
    """A hook that is an object."""

    def __call__(self, *given: Any) -> None:
        pass


def hook_of_mine(*given: Any) -> None:
    """Do nothing."""


def rows(found: hookscope.census) -> list[tuple[str, str | None, str]]:
    return [(entry.kind, entry.layer, entry.callable) for entry in found]


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
