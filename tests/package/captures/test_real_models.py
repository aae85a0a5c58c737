"""What the toys of the other files show, on models of torchvision and transformers: stopping, threads, interrupts."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture
from hookscope.pytree import find_tensors
from tests.shared.language_models import IDS, gpt2
from tests.shared.networks import resnet18

IMAGES = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(1))


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


def test_generate_is_stopped_at_its_first_step() -> None:
    net = gpt2()
    times, handle = ran(net, "transformer.h.1")
    with handle, capture(net, "transformer.h.0", stop=True) as seen:
        net.generate(IDS, max_new_tokens=4, do_sample=False)  # type: ignore[operator]
    assert times == []
    assert torch.equal(seen["transformer.h.0"].output, by_hand(net, "transformer.h.0", IDS))


@pytest.mark.parametrize(
    ("make", "x", "layers"),
    [(resnet18, IMAGES[:2], ("layer1.0.relu", "fc")), (gpt2, IDS, ("transformer.h.0", "transformer.h.1.attn", ""))],
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
