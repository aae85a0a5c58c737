"""What the toys of the other files show, on models of torchvision and transformers: stopping, threads, interrupts."""

from __future__ import annotations

import pickle
import threading
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, census
from hookscope.pytree import find_tensors
from tests.shared.language import IDS, gpt2

IMAGES = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@cache
def resnet() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval()


def by_hand(net: nn.Module, layer: str, x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    # Cloned at once: relu in place comes next.
    handle = net.get_submodule(layer).register_forward_hook(
        lambda module, args, out: kept.append((out if isinstance(out, Tensor) else out[0]).detach().clone())
    )
    with torch.no_grad():
        net(x)
    handle.remove()
    return kept[0]


def ran(net: nn.Module, layer: str) -> tuple[list[int], Any]:
    times: list[int] = []
    return times, net.get_submodule(layer).register_forward_hook(lambda *_: times.append(1))


@pytest.mark.parametrize(
    ("make", "x", "layer", "later"),
    [(resnet, IMAGES, "layer2.0.bn1", "layer2.0.conv2"), (gpt2, IDS, "transformer.h.0.mlp", "transformer.h.1")],
)
def test_a_pass_that_is_stopped_gives_what_the_layer_returned(make: Any, x: Tensor, layer: str, later: str) -> None:
    net = make()
    wanted = by_hand(net, layer, x)
    times, handle = ran(net, later)
    with handle, torch.no_grad():
        with capture(net, layer, stop=True) as seen:
            net(x)
        assert (times, torch.equal(seen[layer].output, wanted)) == ([], True)
        net(x)
        assert times == [1]
    assert not len(census(net))


def test_generate_is_stopped_at_its_first_step() -> None:
    net = gpt2()
    times, handle = ran(net, "transformer.h.1")
    with handle, capture(net, "transformer.h.0", stop=True) as seen:
        net.generate(IDS, max_new_tokens=4, do_sample=False)  # type: ignore[operator]
    assert times == []
    assert torch.equal(seen["transformer.h.0"].output, by_hand(net, "transformer.h.0", IDS))


@pytest.mark.parametrize(("make", "x", "layer"), [(resnet, IMAGES, "layer3"), (gpt2, IDS, "transformer.h.1")])
def test_threads_are_told_apart(make: Any, x: Tensor, layer: str) -> None:
    net = make()
    wanted = [by_hand(net, layer, part) for part in x.split(1)]
    with torch.no_grad(), capture(net, layer) as seen:
        threads = [threading.Thread(target=net, args=(part,), name=f"part {n}") for n, part in enumerate(x.split(1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [call.output for call in seen.calls]
    assert len(found) == len(wanted)
    for one in wanted:
        assert any(torch.allclose(one, other, atol=1e-5) for other in found)


@pytest.mark.parametrize("make", [resnet, gpt2])
def test_a_fresh_capture_after_another_has_its_own_values(make: Any) -> None:
    net = make()
    first, second = (IMAGES[:3], IMAGES[3:]) if make is resnet else (IDS, IDS.flip(1))
    layers = ["layer1.0.bn1", "layer1"] if make is resnet else ["transformer.h.0", "transformer.ln_f"]
    held: dict[str, Tensor] = {}
    with torch.no_grad():
        for number, x in enumerate([first, second, first, second]):
            with capture(net, *layers) as seen:
                net(x)
            for layer in layers:
                assert torch.equal(seen[layer].output, by_hand(net, layer, x))
            if number == 1:
                held = {layer: seen[layer].output for layer in layers}
    for layer, output in held.items():
        assert torch.equal(output, by_hand(net, layer, second)), "a later capture wrote to what somebody holds"


@pytest.mark.parametrize(
    ("make", "x", "layers"),
    [(resnet, IMAGES[:2], ("layer1.0.relu", "fc")), (gpt2, IDS, ("transformer.h.0", "transformer.h.1.attn", ""))],
)
def test_a_capture_is_pickled(make: Any, x: Tensor, layers: tuple[str, ...]) -> None:
    net = make()
    with capture(net, *layers, gradients=True) as seen:
        out = net(x)
        (out if isinstance(out, Tensor) else out.logits).sum().backward()
    loaded = pickle.loads(pickle.dumps(seen))
    assert list(loaded) == list(seen)
    assert [call.label for call in loaded.calls] == [call.label for call in seen.calls]
    for one, other in zip(seen.calls, loaded.calls, strict=True):
        for what in ("output", "grad"):
            kept, read = (list(find_tensors(getattr(call, what))) for call in (one, other))
            assert len(kept) == len(read)
            assert kept or what == "grad"
            assert all(torch.equal(a, b) for a, b in zip(kept, read, strict=True))


def test_calls_of_a_shared_relu_are_kept() -> None:
    net = resnet()
    kept: list[Tensor] = []
    relu = net.get_submodule("layer1.0.relu")
    handle = relu.register_forward_hook(lambda module, args, out: kept.append(out.clone()))
    with handle, torch.no_grad(), capture(net, "layer1.0.relu") as seen:
        net(IMAGES[:2])
    assert torch.equal(torch.stack([call.output for call in seen["layer1.0.relu"].calls]), torch.stack(kept))
    assert len(kept) == 2
    assert len(seen.to_pandas()) == 2


def test_each_step_of_generate_is_a_call() -> None:
    net = gpt2()
    with torch.no_grad(), capture(net, "transformer.h.1.mlp") as seen:
        ids = net.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
    calls = seen["transformer.h.1.mlp"].calls
    assert [call.output.shape for call in calls] == [(2, 5, 16), *[(2, 1, 16)] * 3]
    assert [call.run for call in calls] == [1, 2, 3, 4]
    with torch.no_grad(), capture(net, "transformer.h.1.mlp") as whole:
        net(ids[:, :-1])
    joined = torch.cat([call.output for call in calls], dim=1)
    assert torch.allclose(joined, whole["transformer.h.1.mlp"].output, atol=1e-5)
    frame = seen.to_pandas()
    assert len(frame) == 4
