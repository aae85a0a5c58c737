"""A sweep gives what one plain hook for each cell gives, on models of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError, census
from tests.shared import language_models
from tests.shared.awkward_models import Do, Net
from tests.shared.fake_clock import Clock
from tests.shared.language_models import IDS
from tests.shared.sweep_helpers import Gated, get_outputs, is_close, sweep, sweep_by_hand

ALL = slice(None)


@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_embd=32, n_head=4, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


TOKENS, OTHERS = torch.arange(8)[None] * 5, torch.arange(8)[None] * 3 + 1
LAYERS = [f"transformer.h.{i}{part}" for i in range(3) for part in ("", ".attn", ".mlp")]


def logit(output):
    return output.logits[0, -1, 5] - output.logits[0, -1, 7]


def test_gpt2_at_every_position(gpt2) -> None:
    found = sweep(gpt2, TOKENS, LAYERS, OTHERS, positions=range(8), metric=logit, progress=False)
    new = get_outputs(gpt2, lambda: gpt2(OTHERS), LAYERS)
    known = sweep_by_hand(gpt2, lambda: gpt2(TOKENS), LAYERS, new, [(ALL, p) for p in range(8)], logit)
    assert found.layers == tuple(LAYERS)
    assert is_close(found.values, known)
    assert 0 < len(found.batches) <= 6
    assert sum(found.batches) == 72
    assert found.checked == 4
    assert found.notes == ()
    with torch.no_grad():
        assert found.baseline == float(logit(gpt2(TOKENS)))
        assert found.source == float(logit(gpt2(OTHERS)))
    assert not census(gpt2)
    assert not any("forward" in vars(module) for module in gpt2.modules())


def test_layers_that_return_unlike_things_in_one_sweep() -> None:
    """Attention computed eagerly returns its weights, too."""
    net = language_models.gpt2(attn_implementation="eager")
    layers = [f"transformer.h.{i}{part}" for i in range(2) for part in ("", ".attn", ".mlp")]

    def metric(output):
        return output.logits[0, -1, 5]

    asked = {"positions": range(5), "metric": metric, "progress": False}
    with pytest.raises(ValueError, match=r"h.0.attn' returned several .* or part=\{'transformer.h.0.attn': …\}"):
        sweep(net, IDS, layers, IDS.flip(1), **asked)
    with pytest.raises(ValueError, match=r"part=\{'lm_head': 0\} names none of the layers"):
        sweep(net, IDS, layers, IDS.flip(1), part={"lm_head": 0}, **asked)
    with pytest.raises(LayerNotFoundError, match="did you mean"):
        sweep(net, IDS, layers, IDS.flip(1), part={"transformer.h.0.atn": 0}, **asked)
    found = sweep(
        net, IDS, layers, IDS.flip(1), part={type(net.transformer.h[0].attn): 1, "transformer.h.*.attn": 0}, **asked
    )
    new = get_outputs(net, lambda: net(IDS.flip(1)), layers)
    known = sweep_by_hand(net, lambda: net(IDS), layers, new, [(ALL, p) for p in range(5)], metric)
    assert is_close(found.values, known)
    assert found.notes == ()


def test_blocks_and_attention_of_t5_in_one_sweep() -> None:
    net = language_models.t5()
    layers = ["encoder.block.0", "encoder.block.0.layer.0", "encoder.block.0.layer.1"]
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    other = given | {"input_ids": IDS.flip(1)}

    def metric(output):
        return output.logits[0, -1, 5]

    found = sweep(
        net, given, layers, other, positions=range(5), part={layers[0]: 0, layers[1]: 0}, metric=metric, progress=False
    )
    new = get_outputs(net, lambda: net(**other), layers)
    known = sweep_by_hand(net, lambda: net(**given), layers, new, [(ALL, p) for p in range(5)], metric)
    assert is_close(found.values, known)


def test_the_mean_over_samples_of_llama_and_its_heads() -> None:
    net = language_models.llama()

    def metric(output):
        return output.logits[0, -1, 5]

    layers = ["model.layers.0", "model.layers.1.mlp"]
    found = sweep(net, IDS, layers, "mean", positions=range(5), metric=metric, progress=False)
    new = get_outputs(net, lambda: net(IDS), layers)
    means = {name: tensor.mean(0, keepdim=True).expand_as(tensor) for name, tensor in new.items()}
    known = sweep_by_hand(net, lambda: net(IDS), layers, means, [(ALL, p) for p in range(5)], metric)
    assert is_close(found.values, known)

    heads = sweep(net, IDS, "model.layers.*.self_attn", "zero", heads=range(4), metric=metric, progress=False)
    for row in range(2):
        for head in range(4):

            def hook(module, args, head=head):
                x = args[0].clone()
                x[..., 4 * head : 4 * head + 4] = 0
                return (x,)

            with net.model.layers[row].self_attn.o_proj.register_forward_pre_hook(hook), torch.no_grad():
                assert float(heads.values[row, head]) == pytest.approx(float(metric(net(IDS))), rel=1e-5)


def test_a_bar_shows_the_cells_of_gpt2(gpt2, capsys, monkeypatch) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr("tqdm.std.time", Clock(step=10**9).time)  # a bar comes after a second
    asked = {"positions": range(4), "metric": logit}
    sweep(gpt2, TOKENS, LAYERS[:2], OTHERS, progress=False, **asked)
    assert capsys.readouterr().err == ""
    sweep(gpt2, TOKENS, LAYERS[:2], OTHERS, **asked)
    assert "8/8" in (said := capsys.readouterr().err)
    assert "cell" in said


def test_what_a_sweep_of_gpt2_shows(gpt2) -> None:
    found = sweep(gpt2, TOKENS, LAYERS[:3], OTHERS, positions=range(8), metric=logit, progress=False)
    assert found.picture().png.startswith(b"\x89PNG")
    assert "transformer.h.0.mlp" in repr(found)
    frame = found.to_pandas()
    assert frame["value"].tolist() == found.values.flatten().tolist()
    assert frame["layer"].unique().tolist() == LAYERS[:3]


def test_gpt2_with_keywords_two_samples_and_padding(gpt2) -> None:
    def given(tokens):
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, :3] = 0
        return {"input_ids": torch.cat([tokens, tokens.flip(1)]), "attention_mask": mask}

    def metric(output):
        assert output.logits.shape == (2, 8, 50)
        return output.logits[:, -1, 5].mean()

    layers = ["transformer.h.0", "transformer.h.2.mlp"]
    found = sweep(gpt2, given(TOKENS), layers, given(OTHERS), positions=[0, 3, -1], check=2, metric=metric)
    new = get_outputs(gpt2, lambda: gpt2(**given(OTHERS)), layers)
    known = sweep_by_hand(gpt2, lambda: gpt2(**given(TOKENS)), layers, new, [(ALL, p) for p in (0, 3, -1)], metric)
    assert is_close(found.values, known)
    assert (len(found.batches), found.notes) == (1, ())


def test_gpt2_heads(gpt2) -> None:
    layers = [f"transformer.h.{i}.attn" for i in range(3)]
    found = sweep(gpt2, TOKENS, layers, "zero", heads=range(4), check=3, metric=logit)
    known = torch.empty(3, 4, dtype=torch.float64)
    for row, name in enumerate(layers):
        for head in range(4):

            def hook(module, args, head=head):
                x = args[0].clone()
                x[..., head * 8 : head * 8 + 8] = 0
                return (x,)

            handle = gpt2.get_submodule(f"{name}.c_proj").register_forward_pre_hook(hook)
            with torch.no_grad():
                known[row, head] = float(logit(gpt2(TOKENS)))
            handle.remove()
    assert is_close(found.values, known)
    assert found.layers == tuple(layers)
    assert found.notes == ()


def test_a_metric_that_reads_the_cache_of_gpt2(gpt2) -> None:
    def metric(output):
        return output.past_key_values.layers[2].keys.sum() + output.logits[0, -1, 0]

    layers = ["transformer.h.0.mlp", "transformer.h.1.mlp"]
    found = sweep(gpt2, TOKENS, layers, OTHERS, positions=range(8), check=2, metric=metric)
    new = get_outputs(gpt2, lambda: gpt2(OTHERS), layers)
    known = sweep_by_hand(gpt2, lambda: gpt2(TOKENS), layers, new, [(ALL, p) for p in range(8)], metric)
    assert is_close(found.values, known)
    assert (found.batches, found.notes) == ((16,), ())


def test_a_metric_that_reads_the_cache(gpt2) -> None:
    def metric(output):
        return output.past_key_values.layers[0].keys.sum() + output.logits[0, -1, 0]

    layers = ["transformer.h.1.mlp"]
    found = sweep(gpt2, TOKENS, layers, OTHERS, positions=range(8), check=2, metric=metric)
    new = get_outputs(gpt2, lambda: gpt2(OTHERS), layers)
    known = sweep_by_hand(gpt2, lambda: gpt2(TOKENS), layers, new, [(ALL, p) for p in range(8)], metric)
    assert is_close(found.values, known)
    assert (found.batches, found.notes) == ((8,), ())


def test_a_vision_transformer() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10).eval()
    nn.init.normal_(net.heads.head.weight)
    x, other = torch.randn(2, 2, 3, 32, 32)
    layers = [f"encoder.layers.encoder_layer_{i}{part}" for i in range(3) for part in ("", ".mlp")]

    def metric(output):
        return output[1, 3]

    found = sweep(net, x, layers, other, positions=range(17), metric=metric, progress=False)
    new = get_outputs(net, lambda: net(other), layers)
    known = sweep_by_hand(net, lambda: net(x), layers, new, [(ALL, p) for p in range(17)], metric)
    assert is_close(found.values, known)
    assert found.notes == ()
    assert len(found.batches) < 9


@pytest.mark.slow
def test_a_vision_transformer_of_full_size() -> None:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    net = vit_b_16().eval()
    nn.init.normal_(net.heads.head.weight)
    x, other = torch.randn(2, 1, 3, 224, 224)
    layers, positions = [f"encoder.layers.encoder_layer_{i}" for i in (3, 6, 9, 11)], [0, *range(7, 197, 27)]

    def metric(output):
        return output[0, 3]

    tokens = ["class", *(f"patch {number}" for number in range(196))]
    found = sweep(net, x, layers, other, positions=positions, metric=metric, tokens=tokens, progress=False)
    new = get_outputs(net, lambda: net(other), layers)
    known = sweep_by_hand(net, lambda: net(x), layers, new, [(ALL, p) for p in positions], metric)
    assert is_close(found.values, known)
    assert found.notes == ()
    assert found.names[:2] == ("0 class", "7 patch 6")


def test_channels_of_resnet18() -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    net = resnet18(weights=None).eval()
    x, other = torch.randn(2, 1, 3, 32, 32)
    layers = ["relu", "layer1", "layer2.0.conv1", "layer3.0.bn2"]

    def metric(output):
        return output[0, 3]

    found = sweep(net, x, layers, other, channels=range(4), check=4, metric=metric, progress=False)
    new = get_outputs(net, lambda: net(other), layers)
    known = sweep_by_hand(net, lambda: net(x), layers, new, [(ALL, c) for c in range(4)], metric)
    assert is_close(found.values, known)
    assert found.notes == ()
    assert found.checked == 4


def scores(output):
    assert output["scores"].shape == (2, 5, 3)
    return output["scores"][0].square().sum()


def test_a_model_of_no_known_family() -> None:
    torch.manual_seed(0)
    net = Gated().eval()
    x, other = torch.randn(2, 2, 5, 8)
    layers = ["stem", *(f"blocks.{i}{part}" for i in range(3) for part in (".norm", ".body", ".gate"))]
    found = sweep(net, (x, 2.0), layers, (other, 2.0), positions=range(5), metric=scores)
    new = get_outputs(net, lambda: net(other, 2.0), layers)
    known = sweep_by_hand(net, lambda: net(x, 2.0), layers, new, [(ALL, p) for p in range(5)], scores)
    assert is_close(found.values, known)
    assert found.notes == ()
    whole = sweep(net, (x, 2.0), "blocks.*", "zero", part=0, check=1, metric=scores)
    blocks = ["blocks.0", "blocks.1", "blocks.2"]
    zeros = dict.fromkeys(blocks, torch.zeros(2, 5, 8))
    assert is_close(whole.values, sweep_by_hand(net, lambda: net(x, 2.0), blocks, zeros, [...], scores))
    assert (whole.values.shape, whole.batches) == ((3, 1), (3,))


def test_features_of_one_axis_and_the_mean_over_samples() -> None:
    torch.manual_seed(0)
    net = Gated().eval()
    x, other = torch.randn(2, 5, 8), torch.randn(7, 5, 8)
    layers = ["stem", "blocks.1.body"]
    for source, samples in (("mean", x), (("mean", other), other)):
        found = sweep(net, x, layers, source, channels=range(8), axis=2, check=2, metric=scores)
        means = get_outputs(net, lambda samples=samples: net(samples), layers)
        new = {name: mean.mean(0, keepdim=True).expand(2, 5, 8) for name, mean in means.items()}
        known = sweep_by_hand(net, lambda: net(x), layers, new, [(ALL, ALL, c) for c in range(8)], scores)
        assert is_close(found.values, known)
        assert (found.source, found.notes) == (None, ())


def test_one_call_of_several() -> None:
    torch.manual_seed(0)

    layers = {"a": nn.Linear(4, 4), "relu": nn.ReLU(), "b": nn.Linear(4, 4)}
    net = Net(lambda self, x: self.relu(self.b(self.relu(self.a(x)) + 1)), **layers)
    x = torch.randn(1, 4)
    found = sweep(net, x, ["a", "relu#1", "relu#2"], "zero", channels=range(4), check=2, metric=lambda y: y.sum())
    assert found.layers == ("a", "relu#1", "relu#2")
    with torch.no_grad():
        hidden = net.a(x).relu()
        for channel in range(4):
            first, last = hidden.clone(), net(x)
            first[:, channel] = 0
            last[:, channel] = 0
            assert found.values[1, channel] == pytest.approx(float(net.b(first + 1).relu().sum()), rel=1e-5)
            assert found.values[2, channel] == pytest.approx(float(last.sum()), rel=1e-5)
    assert found.notes == ()


def test_small_sweeps_run_each_cell_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found = sweep(net, torch.ones(1, 3), "0", "zero", channels=range(3), metric=lambda y: y.sum())
    assert (found.batches, found.checked, found.how) == ((), 0, "3 cells, each run alone, with plain hooks")


def test_a_number_sign_in_the_name_of_a_layer() -> None:
    torch.manual_seed(0)

    def run(self, x):
        return self.then["a"](self.then["a#1"](self.first(x)["h"]))

    then = nn.ModuleDict({"a#1": nn.Linear(4, 4), "a": nn.Linear(4, 4)})
    net, x = Net(run, first=Do(lambda x: {"h": x.tanh()}), then=then), torch.randn(2, 4)
    found = sweep(net, x, ["then.a#1", "then.a#1#1"], "zero", channels=range(4), metric=lambda y: y.sum(), check=2)
    assert found.layers == ("then.a#1", "then.a#1#1")
    for number in range(4):
        hidden = net.then["a#1"](x.tanh()).detach()
        hidden[:, number] = 0
        expected = net.then["a"](hidden).sum().item()
    assert found.values[:, number].tolist() == pytest.approx([expected] * 2, abs=1e-5)
