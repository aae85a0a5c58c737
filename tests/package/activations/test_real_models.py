"""What the toys of the other files show, on models of torchvision and of transformers: leaves, parts, kills, disks."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookscope import Activations, capture, census, collect
from tests.package.activations.test_what_is_collected import by_hand
from tests.shared.disks import a_small_disk
from tests.shared.language import IDS, small_vit, t5

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@cache
def resnet() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None, num_classes=5).eval()


def batches() -> Iterator[Tensor]:
    return iter(IMAGES.split(4))


@pytest.mark.parametrize("make", [resnet, small_vit])
def test_all_leaves_that_are_called_are_collected_and_the_others_named(make: Any, tmp_path: Path) -> None:
    net = make()
    stored = collect(net, DataLoader(IMAGES[:8], batch_size=4), to=tmp_path)  # type: ignore[arg-type]
    with torch.no_grad(), capture(net) as seen:
        net(IMAGES[:4])
    labels = {call.label for call in seen.calls}
    assert {name.split("/")[0] for name in stored.names} == labels
    for name in stored.names[:: len(stored.names) // 4]:
        layer = name.split("#")[0].split("/")[0]
        if stored.names.count(layer) == 1 and layer == name and f"{layer}#2" not in stored.names:
            assert torch.equal(stored[name][:], by_hand(net, iter(IMAGES[:8].split(4)), layer))
    out = [note for note in stored.notes if "left out" in note]
    assert bool(out) == (make is small_vit)
    if out:
        assert "out_proj" in out[0]
        assert Activations(tmp_path).notes == stored.notes


def test_a_part_of_what_blocks_return(tmp_path: Path) -> None:
    net = t5()
    loader = [{"input_ids": IDS, "decoder_input_ids": IDS}, {"input_ids": IDS.flip(1), "decoder_input_ids": IDS}]
    with pytest.raises(ValueError, match=r"'encoder.block.0/1' has no axis of samples: .*, as part=0"):
        collect(net, loader, "encoder.block.*", to=tmp_path / "no")
    stored = collect(net, loader, "encoder.block.*", to=tmp_path / "yes", part=0)
    assert stored.names == ["encoder.block.0/0", "encoder.block.1/0"]
    with torch.no_grad():
        wanted = [net.encoder(batch["input_ids"], output_hidden_states=True).hidden_states[1] for batch in loader]  # type: ignore[operator]
    assert torch.equal(stored["encoder.block.0/0"][:], torch.cat(wanted))
    with pytest.raises(ValueError, match=r"layer 'encoder.block.0' has no part=\(7,\); it returned"):
        collect(net, loader, "encoder.block.0", to=tmp_path / "odd", part=7)


def test_interrupted_it_goes_on(tmp_path: Path) -> None:
    def stopping() -> Iterator[Tensor]:
        for number, batch in enumerate(batches()):
            if number == 3:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        collect(resnet(), stopping(), "layer4", "fc", to=tmp_path)
    assert not len(census(resnet()))
    assert len(Activations(tmp_path)) == 12
    stored = collect(resnet(), batches(), "layer4", "fc", to=tmp_path)
    for layer in ("layer4", "fc"):
        assert torch.equal(stored[layer][:], by_hand(resnet(), batches(), layer))
    stored.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_killed_it_goes_on(tmp_path: Path) -> None:
    net = resnet()
    if (child := os.fork()) == 0:
        try:
            torch.set_num_threads(1)

            def dying() -> Iterator[Tensor]:
                for number, batch in enumerate(batches()):
                    if number == 4:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield batch

            collect(net, dying(), "layer4", to=tmp_path, shard_bytes=1, progress=False)
        finally:
            os._exit(0)  # never on in the tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert 0 < len(Activations(tmp_path)) < 24
    stored = collect(net, batches(), "layer4", to=tmp_path, shard_bytes=1)
    assert len(stored) == 24
    torch.testing.assert_close(stored["layer4"][:], by_hand(net, batches(), "layer4"))
    stored.check()


def test_a_full_disk(tmp_path: Path) -> None:
    with a_small_disk(tmp_path / "disk", "200k") as disk:
        with pytest.raises(OSError, match=r"full at sample \d+; the \d+ samples before are whole"):
            collect(resnet(), batches(), "layer1", to=disk / "a", shard_bytes=1)
        begun = Activations(disk / "a")
        begun.check()
        assert 0 < len(begun) < 24
        assert torch.equal(begun["layer1"][:], by_hand(resnet(), batches(), "layer1")[: len(begun)])
        assert not len(census(resnet()))
        del begun
        gc.collect()  # files that are mapped
