"""What the toys of the other files show, on models of torchvision and transformers: interrupts, memory, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import LayerNotFoundError, NotEditedError, census
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, gpt2, small_vit
from tests.shared.networks import resnet18
from tests.shared.sweep_helpers import sweep

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
BLOCKS = ["transformer.h.0", "transformer.h.1"]


def score(out: Any) -> Tensor:
    logits: Tensor = out if isinstance(out, Tensor) else out.logits[:, -1]
    return logits[0, 0] - logits[0, 1]


def by_hand(net: nn.Module, x: Tensor, layer: str, index: tuple[Any, ...]) -> float:
    def zero(module: nn.Module, args: Any, out: Any) -> Any:
        first = out if isinstance(out, Tensor) else out[0]
        new = first.clone()
        new[index] = 0
        return new if isinstance(out, Tensor) else (new, *out[1:])

    with torch.no_grad(), net.get_submodule(layer).register_forward_hook(zero):
        return float(score(net(x)))


@pytest.mark.parametrize("kind", ["gpt2", "resnet18", "vit"])
def test_a_sweep_keeps_to_its_bytes_and_gives_the_same(kind: str) -> None:
    net, x, layers, where = {
        "gpt2": lambda: (gpt2(), IDS, BLOCKS, {"positions": range(5)}),
        "resnet18": lambda: (resnet18(5), IMAGES, ["layer3", "layer4"], {"channels": range(9)}),
        "vit": lambda: (small_vit(), IMAGES[..., :32, :32], "encoder.layers.*", {"positions": range(5)}),
    }[kind]()  # fmt: skip
    options: dict[str, Any] = {"metric": score, "progress": False, "check": 2, **where}
    free = sweep(net, x, layers, "zero", **options)
    assert free.batches
    with pytest.raises(MemoryError, match=r"one run takes about ([\d,]+) bytes") as said:
        sweep(net, x, layers, "zero", max_bytes=10, **options)
    one = int(str(said.value).split("about ")[1].split(" bytes")[0].replace(",", ""))
    tight = sweep(net, x, layers, "zero", max_bytes=4 * one, **options)
    assert max(tight.batches, default=1) < max(free.batches)
    torch.testing.assert_close(tight.values, free.values, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_train_is_said_and_each_cell_run_alone() -> None:
    net = resnet18(5)
    net.train()
    try:
        state = {name: value.clone() for name, value in net.state_dict().items()}
        found = sweep(net, IMAGES, "layer4", "zero", channels=range(14), metric=score, progress=False, check=1)
        assert not found.batches
        assert any("batch norm" in note.lower() or "BatchNorm2d" in note for note in found.notes)
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
        assert float(found.values[0, 3]) == pytest.approx(by_hand(net, IMAGES, "layer4", (slice(None), 3)), abs=1e-4)
    finally:
        net.load_state_dict(state)
        net.eval()


def test_samples_that_take_from_each_other_are_said_and_each_cell_run_alone() -> None:
    def mix(self: nn.Module, ids: Tensor) -> Tensor:
        logits = self.lm(ids).logits[:, -1]
        return logits - logits.mean(0)

    net, layers = Net(mix, lm=gpt2()), [f"lm.{name}" for name in BLOCKS]
    found = sweep(net, IDS, layers, "zero", positions=range(5), metric=score, progress=False, check=1)
    assert not found.batches
    assert "the output of aten::mean does not grow in step with the batch, so samples might mix" in found.notes[0]
    assert found.notes[-1] == "each cell was run alone, with plain hooks"
    assert float(found.values[1, 4]) == pytest.approx(by_hand(net, IDS, layers[1], (slice(None), 4)), abs=1e-5)


REFUSED = {
    "a layer that is not there": ({"layers": "transformer.h.7"}, LayerNotFoundError, "no layer 'transformer.h.7'"),
    "a position that is not there": ({"positions": [5]}, IndexError, "has no position 5"),
    "a source of another shape": ({"source": IDS[:, :3]}, ValueError, "Pass a source of the same shape"),
    "several numbers": ({"metric": lambda out: out.logits[0, 0]}, ValueError, "metric"),
    "a layer that is not called": (
        {"layers": "transformer.h.0.attn.resid_dropout", "model": "unused"}, NotEditedError, "was not called"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_names_the_thing(what: str) -> None:
    given, error, message = REFUSED[what]
    net, options = gpt2(), {"layers": BLOCKS, "source": "zero", "positions": range(5), "metric": score} | given
    if options.pop("model", ""):
        attention = net.get_submodule("transformer.h.0.attn")
        attention.resid_dropout.forward = nn.Identity()  # type: ignore[union-attr, assignment]
        attention._modules["other"] = attention._modules.pop("resid_dropout")
        attention._modules["resid_dropout"] = nn.Dropout()
        attention.forward = lambda *args, **kwargs: (args[0], None)  # type: ignore[method-assign]
    layers, source = options.pop("layers"), options.pop("source")
    with pytest.raises(error, match=message):
        sweep(net, IDS, layers, source, progress=False, **options)  # type: ignore[arg-type]
    assert not len(census(net))
