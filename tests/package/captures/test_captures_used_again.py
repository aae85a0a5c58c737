"""A capture that is entered again uses its memory again, and nobody who holds an earlier result notices."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope import capture
from tests.shared.capture_runs import X, make_small_net


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU())


@pytest.mark.parametrize("mode", ["no_grad", "grad", "inference"])
def test_results_of_an_earlier_pass_stay_what_they_were(mode: str) -> None:
    model = small()
    seen = capture(model, inputs=True)
    context = {"no_grad": torch.no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode}[mode]
    held = []
    with context():
        for factor in range(1, 5):
            with seen:
                model(factor * torch.ones(2, 4))
            tensor, view = seen["0"].output, seen["2"].output[:1, 1:3]
            window, call = seen["1"].output.numpy(), seen.calls[3]
            held.append(
                [
                    (thing, copy.deepcopy(value))
                    for thing, value in [
                        (lambda t=tensor: t, tensor),
                        (lambda v=view: v, view),
                        (lambda w=window: torch.from_numpy(w), window),
                        (lambda c=call: c.output, call.output),
                        (lambda c=call: c.args[0], call.args[0]),
                    ]
                ]
            )
    for things in held:
        for thing, then in things:
            assert torch.equal(thing(), torch.as_tensor(then))


def test_another_batch_size_is_no_problem() -> None:
    model = small()
    seen = capture(model)
    with torch.no_grad():
        for size in (2, 5, 1, 5):
            with seen:
                output = model(torch.ones(size, 4))
            assert torch.equal(seen["3"].output, output)


def test_what_is_overwritten_is_found_on_every_pass() -> None:
    model = small()
    seen = capture(model)
    for gradients in (False, True, False):
        with torch.set_grad_enabled(gradients):
            for _ in range(2):
                with seen:
                    model(torch.ones(2, 4))
                assert seen.overwritten == {"0": "layer 1 (ReLU)"}
                assert (seen["0"].output < 0).any()


def test_nothing_is_held_when_the_capture_goes() -> None:
    import weakref

    model = small()
    seen = capture(model)
    for _ in range(2):
        with torch.no_grad(), seen:
            model(torch.ones(2, 4))
    tensor = weakref.ref(seen["0"].output)
    del seen
    gc.collect()
    assert tensor() is None


def test_two_captures_nest_and_one_can_be_entered_again() -> None:
    net = make_small_net()
    with torch.no_grad(), capture(net, "0") as outer:
        with capture(net, "0", "2") as inner:
            net(X)
        net(X)
    assert len(outer["0"].calls) == 2
    assert len(inner["0"].calls) == 1
    with pytest.raises(RuntimeError, match="already open"), outer, outer:
        pass
    with torch.no_grad(), outer:
        net(X * 2)
    assert outer["0"].output.item() == -8
    assert len(hookscope.census(net)) == 0


# --- started and stopped


def test_starting_again_replaces_what_was_started() -> None:
    model = small()
    first = capture(model).start()
    second = capture(model, "0").start()  # as when the cell is run again
    model(torch.ones(1, 4))
    assert len(second) == 1
    assert not first.calls
    assert second.stop() is second
    assert second.stop() is second
    assert len(hookscope.census(model)) == 0
    first.start()
    with pytest.raises(RuntimeError, match="already open"):
        first.start()
    model(torch.ones(1, 4))
    assert first.stop().order == ["0", "1", "2", "3"]


def test_a_started_capture_that_nobody_holds_is_replaced_too() -> None:
    model = small()
    capture(model).start()
    gc.collect()
    seen = capture(model).start()
    model(torch.ones(1, 4))
    assert seen.stop().order == ["0", "1", "2", "3"]
    assert len(hookscope.census(model)) == 0


def test_a_started_capture_leaves_a_with_block_alone() -> None:
    model = small()
    with capture(model) as outer:
        started = capture(model).start()
        model(torch.ones(1, 4))
        started.stop()
        model(torch.ones(1, 4))
    assert len(outer.calls) == 8
    assert len(started.calls) == 4
    assert len(hookscope.census(model)) == 0


def test_a_model_is_not_kept_alive_by_a_started_capture() -> None:
    import weakref

    model = small()
    gone = weakref.ref(model)
    capture(model).start()
    del model
    gc.collect()
    assert gone() is None


# --- under the transforms of torch.func


def loss_of_state(model: nn.Module) -> Any:
    return lambda state, x: torch.func.functional_call(model, state, x).square().sum()


@pytest.mark.parametrize("options", [{}, {"copy": False}, {"stats": True}, {"gradients": True}], ids=str)
@pytest.mark.parametrize("how", ["vmap", "grad"])
def test_under_a_transform_nothing_changes_and_nothing_is_kept(how: str, options: dict[str, Any]) -> None:
    model, x = small(), torch.randn(5, 4)
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    run = {
        "vmap": lambda: (torch.vmap(model)(x),),
        "grad": lambda: torch.func.grad(loss_of_state(model))(state, x).values(),
    }[how]
    expected = run()
    with pytest.warns(UserWarning, match="under a transform of torch.func"), capture(model, **options) as seen:
        found = run()
    assert all(map(torch.equal, found, expected))
    for call in seen.calls:
        with pytest.raises(RuntimeError, match=r"has no values: .*\. Call the model with the whole batch instead"):
            _ = call.stats if options.get("stats") else call.output
    assert f"{len(seen.calls)} calls" in repr(seen)


def test_gradients_of_a_batched_backward_are_not_kept() -> None:
    model = small()
    with capture(model, "2", gradients=True) as seen:
        y = model(torch.randn(5, 4))
        rows = torch.vmap(lambda row: torch.autograd.grad(y.sum(0), model[0].weight, row, retain_graph=True)[0])
        rows(torch.eye(y.shape[1]))
    with pytest.raises(RuntimeError, match="a gradient has no values: it ran under a transform"):
        _ = seen["2"].grad


# --- one call of several


def test_a_call_can_be_asked_for_by_its_label() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 3), relu, nn.Linear(3, 2), relu)
    with capture(model, gradients=True) as seen:
        output = model(torch.ones(2, 4))
        output.sum().backward()
    for call in seen.calls[::2] + seen.calls[3:]:
        assert seen[call.label].output is call.output
        assert torch.equal(seen[call.label].grad, call.grad)
    assert seen["1#1"].output.shape == (2, 3)
    assert torch.equal(seen["1#2"].output, output)
    with pytest.raises(RuntimeError, match="layer '1' has no call 3: it was called 2"):
        seen["1#3"]
    with pytest.raises(LookupError, match="no layer '9#1'"):
        seen["9#1"]
