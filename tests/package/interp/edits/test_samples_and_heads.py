"""`heads=` means heads and nothing else, `samples=` and `mean` mean samples and nothing else."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hookscope import at, edit
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import llama, small_vit
from tests.shared.sweep_helpers import Flat

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layer", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])
def test_heads_of_what_makes_queries_keys_and_values_are_refused(layer: str) -> None:
    with pytest.raises(ValueError, match=f"'model.layers.0.{layer}' does not get the heads of"):
        edit(llama()).set(f"model.layers.0.{layer}", 0, heads=1)


@pytest.mark.parametrize("layer", ["lm_head", "model.layers.0.mlp.down_proj", "model.layers.0.mlp"])
def test_what_has_a_config_but_no_heads_is_refused(layer: str) -> None:
    with pytest.raises(ValueError, match="has no attribute with its number of heads"):
        edit(llama()).set(layer, 0, heads=1)


def attention(out_proj: nn.Module, turned: bool = False) -> Net:
    """Build two heads side by side, then an output projection of whatever kind."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        return torch.tanh(x).mT if turned else self.out_proj(torch.tanh(x))

    return Net(run, num_heads=2, attention_head_size=3, out_proj=out_proj).eval()


def adapter() -> Net:
    """Build a linear layer with something beside it."""
    layers = {"base": nn.Linear(6, 6), "more": nn.Linear(6, 6)}
    return Net(lambda self, x: self.base(x) + self.more(x), in_features=6, **layers)


@pytest.mark.parametrize("kind", ["adapter", "quantized", "sequential", "list"])
def test_heads_lie_before_an_output_projection_of_any_kind(kind: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    made: dict[str, nn.Module] = {
        "adapter": adapter(),
        "quantized": torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 6)), {nn.Linear})[0],
        "sequential": nn.Sequential(linear, nn.Dropout()),
        "list": nn.ModuleList([linear, nn.Dropout()]),
    }
    net = attention(made[kind])
    if kind == "list":
        net.forward = lambda x: linear(torch.tanh(x))  # type: ignore[method-assign]
    inside = torch.tanh(X)
    inside[:, 3:] = 0
    with torch.no_grad(), edit(net) as e:
        e.set("", 0, heads=1)
        y = net(X)
        after = made[kind][0] if kind == "list" else made[kind]  # type: ignore[index]
    with torch.no_grad():
        torch.testing.assert_close(y, after(inside))
    assert e.rows[0]["layer"] == ("out_proj.0" if kind == "list" else "out_proj")


def of_transformers(kind: str, **sizes: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, **sizes)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{kind}Model")(config).eval()


WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def test_heads_of_differential_attention_are_refused() -> None:
    # Head 0 takes part in what stands where heads 0 and 1 would, and so does head 2.
    net = of_transformers("DiffLlama", num_key_value_heads=2, **WIDE)
    for name in ("layers.0.self_attn", "layers.0.self_attn.o_proj"):
        with pytest.raises(ValueError, match=f"layer '{name}': .* is differential attention.*Use an index"):
            edit(net).set(name, 0.0, heads=1)


@pytest.mark.parametrize("kind", ["ModernBert", "Funnel", "MaxViT"])
def test_heads_before_projections_of_other_names(kind: str) -> None:
    from torchvision.models.maxvit import RelativePositionalMultiHeadAttention

    ids = torch.randint(3, 20, (2, 16), generator=torch.Generator().manual_seed(0))
    x: Tensor = ids if kind != "MaxViT" else torch.randn(2, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    net, layer, projection = {
        "ModernBert": lambda: (of_transformers(kind, pad_token_id=0, **WIDE), "layers.0.attn", "layers.0.attn.Wo"),
        "Funnel": lambda: (
            of_transformers(kind, d_model=16, n_head=4, d_head=4, d_inner=24, block_sizes=[1, 1]),
            "encoder.blocks.0.0.attention",
            "encoder.blocks.0.0.attention.post_proj",
        ),
        "MaxViT": lambda: (RelativePositionalMultiHeadAttention(8, 4, 16).eval(), "", "merge"),
    }[kind]()
    size = net.get_submodule(projection).in_features // (2 if kind == "MaxViT" else 4)  # type: ignore[operator]

    def without(module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        new: Tensor = args[0].clone()
        new[..., size : 2 * size] = 0
        return new

    def out(y: Any) -> Tensor:
        return y if isinstance(y, Tensor) else y[0]

    with torch.no_grad():
        with edit(net) as e:
            e.set(layer, 0.0, heads=1)
            y = out(net(x))
        handle = net.get_submodule(projection).register_forward_pre_hook(without)
        assert torch.equal(y, out(net(x)))
        handle.remove()
        assert not torch.equal(y, out(net(x)))


def test_heads_without_a_projection_that_is_known_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"has 2 heads, but no submodule with the name of an output projection"):
        edit(Net(lambda self, x: x, num_heads=2, mixing=nn.Linear(6, 6))).set("", 0.0, heads=1)


def test_an_index_goes_into_what_heads_and_samples_have_picked() -> None:
    net = attention(nn.Linear(6, 6))
    inside = torch.tanh(X)
    inside[1, 3:5] = 0
    with torch.no_grad(), edit(net) as e:
        e.set("", 0.0, at[..., :2], heads=1, samples=[1])
        y = net(X)
    with torch.no_grad():
        torch.testing.assert_close(y, net.out_proj(inside))


def test_an_axis_that_is_not_that_of_heads_is_refused() -> None:
    net = attention(nn.Identity(), turned=True)
    del net.out_proj
    e = edit(net)
    e.set("", 0, heads=1)
    with pytest.raises(IndexError, match="the last axis must hold the 6 values of all heads"), e:
        net(torch.ones(2, 5, 6))


# -- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["samples", "mean"])
def test_samples_and_tokens_in_one_axis_are_refused(how: str) -> None:
    net, x = Flat(), torch.randn(2, 3, 4)
    e = edit(net)
    _ = e.set("expert", 0, samples=[1]) if how == "samples" else e.mean("expert")
    with (
        pytest.raises(ValueError, match=r"the shape is \(6, 4\), and the model's first input has 2"),
        e,
    ):
        net(x)
    with edit(net) as e:  # called by itself, it runs on what it is given
        e.set("expert", 0, samples=[5])
        y = net.expert(x.flatten(0, 1))
    assert torch.equal(y[5], torch.zeros(4))


@pytest.mark.parametrize("how", ["samples", "mean"])
def test_tokens_before_samples_are_refused(how: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(ValueError, match="'linear1' is, or is in, a TransformerEncoderLayer with batch_first=False"):
        _ = edit(layer).set("linear1", 0, samples=[1]) if how == "samples" else edit(layer).mean("linear1")


@pytest.mark.parametrize("how", ["samples", "mean"])
def test_under_vmap_there_are_no_samples(how: str) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    e = edit(net)
    _ = e.set("0", 0, samples=[1]) if how == "samples" else e.mean("0")
    with pytest.raises(RuntimeError, match=r"under torch\.vmap a layer sees one sample at a time"), e:
        torch.vmap(net)(X)


def test_samples_of_a_list_of_pictures() -> None:
    net = Net(lambda self, pictures: self.layer(torch.stack(pictures) * 1), layer=nn.Identity())
    with edit(net) as e:
        e.set("layer", 0, samples=[1])
        y = net([torch.ones(3), torch.ones(3)])
    assert y.tolist() == [[1, 1, 1], [0, 0, 0]]


# -- what a function returns, and what cannot be built again or measured --------------------------------------------


def test_memory_that_a_function_returns_and_that_is_numpys_is_copied() -> None:
    mine = np.full((4, 6), -1.0, dtype=np.float32)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
    with torch.no_grad(), edit(net) as e:
        e.map("0", lambda values: torch.from_numpy(mine))
        net(X)
    assert (mine == -1).all()


def test_a_dtype_that_torch_does_not_compute_with_is_edited_and_not_measured() -> None:
    net = nn.Sequential(Do(lambda x: x.to(torch.float8_e4m3fn)))
    with edit(net) as e:
        e.map("0", lambda values: torch.zeros_like(values))
        y = net(X)
    assert not y.float().any()
    assert e.rows[0]["largest change"] == "not measured"


def test_an_index_is_what_the_layer_sees_also_under_vmap() -> None:
    net = nn.Sequential(nn.Identity())
    with edit(net) as e:
        e.set("0", 0.0, at[1])
        y = torch.vmap(net)(X)
    assert torch.equal(y, X.index_fill(1, torch.tensor([1]), 0))


def test_what_has_no_values_is_edited_and_not_measured() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.ReLU()).to("meta")
    with edit(net) as e:
        e.scale("0", 2.0)
        assert net(torch.empty(4, 6, device="meta")).shape == (4, 3)
    with FakeTensorMode():
        small = nn.Linear(6, 3)
        with edit(small) as fake:
            fake.scale("", 2.0)
            small(torch.empty(4, 6))
    for each in (e, fake):
        assert "not measured" in repr(each)
        assert each.rows[0]["calls changed"] == 1


def test_steps_of_training_leave_nothing_behind_inside_the_block() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1))

    def held(steps: int) -> int:
        for _ in range(steps):
            net.zero_grad()
            net(X).sum().backward()
        gc.collect()
        return sum(type(each) is Tensor for each in gc.get_objects())

    with edit(net) as e:
        e.scale("0", 2.0)
        e.scale("1", 0.5, to="grad")
        before = held(100)
        assert held(200) - before < 100
        expected = [{"calls changed": 300, "largest change": pytest.approx(row["largest change"])} for row in e.rows]
        assert [{key: row[key] for key in expected[0]} for row in e.rows] == expected
        assert len(e._gradients._handles) < 100


def test_where_an_edit_of_heads_switches_a_fused_path_off_that_is_said() -> None:
    net = small_vit()
    x, layer = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), "encoder.layers.encoder_layer_0"

    def edited() -> tuple[Tensor, Tensor, tuple[str, ...]]:
        plain = net(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with edit(net) as e:
                e.scale(f"{layer}.self_attention", 0.0, samples=[0], heads=1)
                changed = net(x)
        return plain, changed, e.notes

    with torch.no_grad():
        _, _, notes = edited()
    assert any("switch off the fused path of layer" in note and "rounded differently" in note for note in notes)
    plain, changed, notes = edited()  # with gradients there is no fused path
    assert torch.equal(changed[1], plain[1])
    assert not torch.equal(changed[0], plain[0])
    assert notes == ()
