"""What the toys of the other files show, on models of torchvision and of transformers: leaves, parts, kills, disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hookscope import Activations, capture, collect
from tests.package.interp.activations.test_what_is_collected import by_hand
from tests.shared.language_models import IDS, small_vit, t5
from tests.shared.networks import resnet18

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [resnet18, small_vit])
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
