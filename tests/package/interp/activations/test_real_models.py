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
from hookscope.interp.activations import DamagedError
from tests.package.interp.activations.test_what_is_collected import by_hand
from tests.shared.disks import a_small_disk
from tests.shared.language import IDS, gpt2, small_vit, t5

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
    with pytest.raises(ValueError, match=r"'encoder.block.0/1' has no sample axis: .*, or .*part=0"):
        collect(net, loader, "encoder.block.*", to=tmp_path / "no")
    stored = collect(net, loader, "encoder.block.*", to=tmp_path / "yes", part=0)
    assert stored.names == ["encoder.block.0/0", "encoder.block.1/0"]
    with torch.no_grad():
        wanted = [net.encoder(batch["input_ids"], output_hidden_states=True).hidden_states[1] for batch in loader]  # type: ignore[operator]
    assert torch.equal(stored["encoder.block.0/0"][:], torch.cat(wanted))
    with pytest.raises(ValueError, match=r"layer 'encoder.block.0' has no part=\(7,\). It returned"):
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


def test_a_classifier_that_notes_its_task_goes_on(tmp_path: Path) -> None:
    """Where a classifier of transformers is given labels, its forward writes into its config."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes)).eval()
    loader = [{"input_ids": IDS + number, "labels": torch.tensor([0, 1])} for number in range(4)]

    def stopping() -> Iterator[dict[str, Tensor]]:
        yield from loader[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(net, stopping(), "classifier", to=tmp_path)
    assert net.config.problem_type == "single_label_classification"
    stored = collect(net, loader, "classifier", to=tmp_path)
    with torch.no_grad():
        assert torch.equal(stored["classifier"][:], torch.cat([net(**batch).logits for batch in loader]))
    net.config.hidden_act = "relu"
    with pytest.raises(ValueError, match="with a different model"):
        collect(net, loader, "classifier", to=tmp_path)


@pytest.mark.parametrize("make", [resnet, gpt2])
def test_what_is_on_disk_is_read_by_workers_from_a_memory_map_and_checked(make: Any, tmp_path: Path) -> None:
    net = make()
    given = [IDS, IDS.flip(1), IDS + 3] if make is gpt2 else list(IMAGES[:6].split(2))
    layer = "transformer.h.1.mlp" if make is gpt2 else "layer1.0.bn1"
    stored = Activations(collect(net, given, layer, to=tmp_path, shard_bytes=1).folder)
    whole = by_hand(net, given, layer)
    assert len(stored.shards) == 3
    read = DataLoader(stored, batch_size=4, num_workers=2)
    assert torch.equal(torch.cat([batch[layer] for batch in read]), whole)
    assert stored[layer][1:4].untyped_storage().nbytes() == whole[1:4].nbytes, "three samples, not the file"
    stored.check()
    path = stored.shards[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedError, match=f"{layer!r} in .*00001.safetensors was changed after it was written"):
        Activations(tmp_path).check()


def test_a_full_disk(tmp_path: Path) -> None:
    with a_small_disk(tmp_path / "disk", "200k") as disk:
        with pytest.raises(OSError, match=r"full at sample \d+\. The first \d+ samples are saved"):
            collect(resnet(), batches(), "layer1", to=disk / "a", shard_bytes=1)
        begun = Activations(disk / "a")
        begun.check()
        assert 0 < len(begun) < 24
        assert torch.equal(begun["layer1"][:], by_hand(resnet(), batches(), "layer1")[: len(begun)])
        assert not len(census(resnet()))
        del begun
        gc.collect()  # files that are mapped
