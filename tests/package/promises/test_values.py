"""Values are those of that moment: what a tool has of each call is what a clone held when the layer returned."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, collect, leaves, profile, record
from tests.shared.awkward_models import (
    FUSED,
    LARGE,
    MODELS,
    PEERS,
    RAISED,
    Call,
    calls,
    cloning,
    deep_clone,
    difference,
    seed,
    tensors_in,
)
from tests.shared.capture_runs import assert_same_calls, compare_runs, run_watched
from tests.shared.edit_formulas import KINDS
from tests.shared.hand_written_edits import EditableCall, Spec, choose_spec, list_editable_calls, list_tensor_paths
from tests.shared.hand_written_edits import check_edits as check_edit
from tests.shared.table_checks import check_each

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, checkpoints and the like
SMALL = [name for name in MODELS if name not in LARGE]
SEEN = ("mobilenet_v3_small", "vit_b_16")  # with batch norm, layers in place and attention, as the other large ones
SLOW = {name: pytest.mark.slow for name in LARGE if name not in SEEN}

# --- capture

WAYS: dict[str, tuple[str, dict[str, bool]]] = {
    "no_grad": ("no_grad", {"gradients": False, "inputs": False}),
    "grad": ("grad", {"gradients": True, "inputs": False}),
    "inference": ("inference", {"gradients": False, "inputs": False}),
    "inputs": ("grad", {"gradients": False, "inputs": True}),
}


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=SLOW.get(name, ())) for name in MODELS), "catching"])
def test_a_capture_has_each_call_and_changes_nothing(name: str) -> None:
    def check_way(way: str) -> None:
        mode, options = WAYS[way]
        assert not compare_runs(MODELS.get(name, calls.catching), mode, **options, fused=name in FUSED)

    check_each(WAYS, check_way)


def test_the_reference_is_the_same_every_time() -> None:
    def check_model(name: str) -> None:
        first, second = (
            run_watched(MODELS[name], "grad", lambda model: cloning(model, gradients=True)) for _ in range(2)
        )
        assert first.seen
        assert not difference(first.seen, second.seen)

    check_each(list(MODELS)[PEERS:], check_model)


@contextlib.contextmanager
def holding(model: nn.Module) -> Iterator[list[tuple[str, Any, Any]]]:
    """Hold every output as it is, beside a clone of it: what differs at the end was overwritten."""
    held: list[tuple[str, Any, Any]] = []
    counts: dict[str, int] = {}

    def hold(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            counts[name] = counts.get(name, 0) + 1
            held.append((f"{name}#{counts[name]}", output, deep_clone(output)))

        return hook

    handles = [layer.register_forward_hook(hold(name)) for name, layer in leaves(model).items()]
    yield held
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "vgg16" else SLOW.get(name, ())) for name in list(MODELS)[:PEERS]]
)
def test_a_capture_names_every_output_that_was_overwritten(name: str) -> None:
    held = run_watched(MODELS[name], "no_grad", holding).seen
    seen = run_watched(MODELS[name], "no_grad", capture).seen
    changed = {label.removesuffix("#1") for label, output, clone in held if difference(output, clone)}
    assert changed <= set(seen.overwritten) <= {call.label for call in seen.calls}
    if name in ("shared conv called twice", "LSTM tuple", "an unused layer", "vit_b_16"):
        assert not seen.overwritten
    if name == "vgg16":
        assert len(seen.overwritten) == 15  # as measured for the tools that keep references


def test_a_capture_has_what_three_steps_of_training_had() -> None:
    def build() -> Any:
        seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def train(model: nn.Module, x: Tensor) -> Tensor:
            for batch in x.split(6):
                optimizer.zero_grad()
                loss = net(batch).square().sum()
                loss.backward()
                optimizer.step()
            return loss.detach()

        model = nn.Module()
        model.net, model.forward = net, lambda x: train(model, x)
        return model, (torch.randn(18, 4),), {}

    plain = run_watched(build, "grad", lambda model: contextlib.nullcontext())
    cloned = run_watched(build, "grad", lambda model: cloning(model, gradients=True))
    seen = run_watched(build, "grad", lambda model: capture(model, gradients=True))
    assert not difference((seen.output, seen.state, seen.random), (plain.output, plain.state, plain.random))
    assert_same_calls(seen.seen, cloned.seen, gradients=True, inputs=False)


# --- record, collect, profile


@pytest.mark.parametrize("name", SMALL)  # it keeps no more than 16 numbers of a tensor
def test_a_recording_has_the_numbers_of_each_call(name: str) -> None:
    check_each(("grad", "inference"), partial(check_numbers, name))


def check_numbers(name: str, mode: str) -> None:
    reference: list[Call] = run_watched(MODELS[name], mode, cloning).seen
    kinds = ("forward_pre", "forward")
    watched = run_watched(
        MODELS[name], mode, lambda model: record(model, kinds=kinds, values=True, max_events=10**6), spoil=True
    )
    found = {(event.kind, event.name, event.call): event.values for event in watched.seen.events if not event.hook}
    for call in reference:
        args, kwargs = call.inputs
        given = found["forward_pre", call.layer, call.number]
        pairs = list(zip((*args, kwargs) if kwargs else args, given, strict=True))
        if call.output is not RAISED:
            pairs.append((call.output, found["forward", call.layer, call.number]))
        for expected, value in pairs:
            if isinstance(expected, Tensor) and expected.layout is torch.strided and expected.numel() <= 16:
                assert not difference(value, expected, f"{call.layer}#{call.number}")


NOT_COLLECTED = {
    **dict.fromkeys(
        (
            "channels_last", "unfold, which overlaps", "packed sequence", "overwritten by copy_",
            "a view overwritten by copy_", "overwritten by storage copy_", "a view overwritten by storage copy_",
            "one row per call of one tensor", "a buffer filled again in every call",
            "a parameter returned, then changed", "overwritten before and after a second use",
            "overwritten in backward", "a leaf that calls itself",
        ),
        "not on its first 3 samples",
    ),
    "a module replaced during forward": "'b' exists for two samples or for three, but not for both",
}  # fmt: skip
LEFT_OUT = "no sample axis|returned no tensor|sparse_coo|was not called|exists for two samples|is not the number of"


@pytest.mark.parametrize("name", SMALL)
def test_a_collection_has_each_sample_or_says_which_layer_it_left_out(name: str, tmp_path: Path) -> None:
    (model, args, kwargs), (other, *_) = MODELS[name](), MODELS[name]()
    if kwargs or not isinstance(args[0], Tensor):
        pytest.skip("collect calls a model with one tensor")
    batches = [args[0].detach(), args[0].detach().flip(-1)]
    reference: list[list[Call]] = []
    seed(1)
    for batch in batches:
        with torch.no_grad(), cloning(other.eval()) as kept:
            other(batch.clone())
        reference.append(kept)
    seed(1)
    loader = [batch.clone() for batch in batches]
    if name in NOT_COLLECTED:
        with pytest.raises(ValueError, match=NOT_COLLECTED[name]):
            collect(model.eval(), loader, to=tmp_path, progress=False)
        return
    stored = collect(model.eval(), loader, to=tmp_path, progress=False)
    assert len(stored) == 4
    assert stored.names
    for first, second in zip(*reference, strict=False):
        label = first.layer if first.number == 1 else f"{first.layer}#{first.number}"
        for (path, _), one, two in zip(
            list_tensor_paths(first.output), tensors_in(first.output), tensors_in(second.output), strict=True
        ):
            full = "/".join([label or "(root)", *map(str, path)])
            if full not in stored.names:
                assert any(full.split("/")[0] in note and re.search(LEFT_OUT, note) for note in stored.notes), full
                continue
            whole = [torch.cat([one, two], axis) for axis, size in enumerate(one.shape) if size == 2]
            found = stored[full][:]
            assert any(not difference(found, each) or not difference(found, each.movedim(1, 0)) for each in whole), full


@pytest.mark.parametrize("name", SMALL)
def test_a_profile_counts_the_calls_of_each_layer(name: str) -> None:
    reference: list[Call] = run_watched(MODELS[name], "no_grad", cloning).seen
    model, args, kwargs = MODELS[name]()
    seed(1)
    with torch.no_grad():
        costs = profile(model, *args, kwargs=kwargs, repeats=1, warmup=0)
    counts = Counter(call.layer for call in reference)
    if name in ("a module made during forward", "a module replaced during forward"):
        assert any(
            re.search(r"layer '(late|b)' came into the model .*Create it in __init__", note) for note in costs.notes
        )
        counts = Counter({layer: number for layer, number in counts.items() if layer in costs})
    assert {layer: costs[layer].calls for layer in counts} == counts


# --- edit: what hooks written by hand do, for every verb

ENDS = ("output", "input", "grad")


def fitting(name: str, calls: list[EditableCall], to: str, number: int, kind: str) -> Spec | None:
    """Make an edit of one of the layers, another one for each number; None if none fits."""
    mine = [call for call in calls if call.to == to and any(shape is not None for _, shape in call.tensors)]
    tries = (choose_spec(MODELS[name], calls, calls.index(mine[(number + more) % len(mine)]), kind, number, False, True)
             for more in range(min(len(mine), 4)))  # fmt: skip
    return next((spec for spec in tries if spec is not None), None)


# A matrix product rounds a tensor with other strides in another way on some processors.
ROUNDED = {"channels_last": 1e-6}


@pytest.mark.parametrize("every_end", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one end", "every end"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in MODELS])
def test_an_edit_is_what_hooks_written_by_hand_make(name: str, every_end: bool) -> None:
    calls = list_editable_calls(MODELS[name]())
    # One end for each verb, another one from model to model. The slow tests take every end of all but the large models
    # and the many that are overwritten.
    one_end = not every_end or "overwritten by" in name or name in LARGE
    errors = []
    for end, to in enumerate(ENDS):
        specs = [
            spec
            for number, kind in enumerate(KINDS)
            if not (one_end and (number + len(name)) % 3 != end)
            and (spec := fitting(name, calls, to, number, kind)) is not None
        ]
        for some in [specs] if name in LARGE else [[spec] for spec in specs]:
            if some:
                errors.append(check_edit(MODELS[name], some, rounding=ROUNDED.get(name, 0)))
    assert "" in errors, "nothing was edited"


def test_a_function_that_writes_in_place_writes_to_values_of_its_own() -> None:
    name = "what layers return is in the memory of what they got, or saved for backward"
    calls = list_editable_calls(MODELS[name]())
    specs = [fitting(name, calls, to, number, "map, in place") for to in ENDS for number in range(9)]
    check_each(specs, lambda spec: check_edit(MODELS[name], [spec], rounding=ROUNDED.get(name, 0)))
