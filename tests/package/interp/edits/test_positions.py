"""`positions=` counts tokens of the whole sequence, in models of transformers, also under a KV cache."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import NotEditedError, at, capture, edit
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, bert, generate, gpt2, llama, small_vit, t5

V = torch.linspace(-3, 3, 16)


def by_full_pass(model: nn.Module, layer: str, sequence: Tensor, places: list[int]) -> Tensor:
    """Run all tokens at once, without a cache, adding V at some places by a hook; the logits."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        whole = output if isinstance(output, Tensor) else output[0]
        new = whole.clone()
        new[:, places] += V
        return new if isinstance(output, Tensor) else (new, *output[1:])

    handle = model.get_submodule(layer).register_forward_hook(hook)
    try:
        with torch.no_grad():
            return model(sequence, use_cache=False).logits
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("make", "layer"), [(gpt2, "transformer.h.0.mlp"), (gpt2, "transformer.h.1"), (llama, "model.layers.1.self_attn")]
)
@pytest.mark.parametrize("place", [2, 7])
def test_a_position_is_edited_once_in_prefill_or_in_a_step_of_generate(make: Any, layer: str, place: int) -> None:
    model = make()
    part = 0 if layer.endswith("attn") else None
    with edit(model) as e:
        e.add(layer, V, positions=place, part=part)
        made = generate(model, tokens=6)
    (row,) = e.rows
    assert row["calls seen"] == 6
    assert row["calls changed"] == 1
    assert row["positions"] == ("call 1: 2" if place == 2 else "call 4: 7")
    expected = by_full_pass(model, layer, made.sequences, [place])
    for step, logits in enumerate(made.logits):
        torch.testing.assert_close(logits, expected[:, IDS.shape[1] + step - 1], rtol=1e-4, atol=1e-5)


def test_from_a_position_on_is_every_generated_token_the_first_one_too() -> None:
    model = gpt2()
    with edit(model) as e:
        e.add("transformer.h.0.mlp", V, positions=slice(IDS.shape[1], None))
        made = generate(model, tokens=5)
    assert e.rows[0]["calls changed"] == 4, "prefill makes the first token, which is computed in the next call"
    expected = by_full_pass(model, "transformer.h.0.mlp", made.sequences[:, :-1], [5, 6, 7, 8])
    for step, logits in enumerate(made.logits):
        torch.testing.assert_close(logits, expected[:, IDS.shape[1] + step - 1], rtol=1e-4, atol=1e-5)


def test_positions_in_chunks_and_with_a_cache_of_ones_own() -> None:
    from transformers import DynamicCache, StaticCache

    model = gpt2()
    sequence = torch.cat([IDS, IDS], 1)
    expected = by_full_pass(model, "transformer.h.0", sequence, [3, 6, 9])
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=16)):
        with torch.no_grad(), edit(model) as e:
            e.add("transformer.h.0", V, positions=[3, 6, 9])
            parts = [model(piece, past_key_values=cache).logits for piece in sequence.split([4, 5, 1], 1)]
        assert e.rows[0]["positions"] == "call 1: 3; call 2: 6; call 3: 9"
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=1e-5)


def test_the_encoder_and_the_decoder_of_t5_count_for_themselves() -> None:
    model = t5()
    with edit(model) as e:
        e.set("encoder.block.0.layer.1", 0, positions=4)
        e.set("decoder.block.0.layer.2", 0, positions=3)
        e.set("decoder.block.1.layer.0.SelfAttention", 0, positions=range(2), part=0)
        generate(model, tokens=5)
    assert [row["calls seen"] for row in e.rows] == [1, 5, 5]
    assert [row["positions"] for row in e.rows] == ["call 1: 4", "call 4: 3", "call 1: 0; call 2: 1"]


def test_bert_by_position_by_head_and_by_sample() -> None:
    model = bert()
    with torch.no_grad(), capture(model, "encoder.layer.0.attention.output.dense", inputs=True) as plain:
        model(IDS)
    with (
        torch.no_grad(),
        edit(model) as e,
        capture(model, "encoder.layer.0.attention.output.dense", inputs=True) as seen,
    ):
        e.set("encoder.layer.0.attention.self", 5.0, positions=[1, 4], heads=1, samples=[1], part=0)
        model(IDS)
    expected = plain["encoder.layer.0.attention.output.dense"].args[0].clone()
    expected[1, [1, 4], 8:] = 5
    assert torch.equal(seen["encoder.layer.0.attention.output.dense"].args[0], expected)


def test_at_is_an_index_into_the_positions_and_captures_and_gradients_are_cut_alike() -> None:
    model = gpt2()
    layer = "transformer.h.0.mlp"
    with torch.no_grad(), capture(model, layer) as clean:
        model(IDS)
    with torch.no_grad(), edit(model) as e, capture(model, layer) as seen:
        e.swap(layer, clean, positions=[0, 3])
        e.set(layer, 1.0, at[..., :2], positions=range(3, 5))
        model(IDS.flip(1))
    assert torch.equal(seen[layer].output[:, 0], clean[layer].output[:, 0])
    assert torch.equal(seen[layer].output[:, 3, 2:], clean[layer].output[:, 3, 2:])
    assert (seen[layer].output[:, 3:, :2] == 1).all()
    with edit(model) as e, capture(model, layer, gradients=True) as seen:
        e.set(layer, 0, to="grad", positions=2)
        model(IDS).logits.sum().backward()
    assert seen[layer].grad is not None
    assert e.rows[0]["positions"] == "call 1: 2"


def test_a_position_that_never_came_is_an_error() -> None:
    model = gpt2()
    e = edit(model)
    e.add("transformer.h.0.mlp", V, positions=range(7, 9))
    with pytest.raises(NotEditedError, match="never with position 7, 8, only with 0 to 4"), e:
        model(IDS)


def test_padding_on_the_left_counts_and_is_said() -> None:
    model = gpt2()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    e = edit(model)
    e.add("transformer.h.0.mlp", V, positions=2)
    with torch.no_grad(), pytest.warns(UserWarning, match=r"samples \[0\] begin with padding.* has position 2"), e:
        model(IDS, attention_mask=mask)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="position_ids do not start at the number of earlier tokens"),
        e,
    ):
        model(IDS, position_ids=torch.arange(3, 8)[None])
    with torch.no_grad(), warnings.catch_warnings(), e:
        warnings.simplefilter("error")
        model(IDS, attention_mask=torch.ones_like(mask))


def test_where_positions_cannot_be_told_the_error_says_what_to_give() -> None:
    vit = small_vit()
    e = edit(vit)
    e.set("encoder.layers.encoder_layer_0.mlp", 0, positions=1)
    with pytest.raises(ValueError, match=r"without token IDs of shape.*such as at\[:, 7\]"), e:
        vit(torch.zeros(1, 3, 32, 32))
    model = gpt2()
    e = edit(model)
    e.set("lm_head", 0, positions=4)
    with pytest.raises(ValueError, match=r"needs a tensor of shape \(2, 5, …\).* has \(2, 1, 20\)"), e:
        model(IDS, logits_to_keep=1)
    for wrong, error in ((-1, ValueError), ([], ValueError), ("all", TypeError), (slice(5, 2), ValueError)):
        with pytest.raises(error, match="positions="):
            edit(model).set("lm_head", 0, positions=wrong)


def test_a_model_of_ones_own_with_and_without_a_place_to_start() -> None:
    stepping = Net(lambda self, ids, start_pos=0: self.embed(ids), embed=nn.Embedding(20, 4))
    with edit(stepping) as e:
        e.set("embed", 0, positions=6)
        stepping(IDS)
        stepping(IDS[:, :1], start_pos=5)
        assert not stepping(IDS[:, :1], start_pos=6).any()
    assert e.rows[0]["positions"] == "call 3: 6"
    e = edit(stepping)
    e.set("embed", 0, positions=3)
    with pytest.raises(ValueError, match=r"nothing tells how many came before\. Pass cache_position or"), e:
        [stepping(ids) for ids in (IDS, IDS[:, :1])]
    with pytest.warns(UserWarning, match="got no cache, so positions are counted from 0 in each"), e:
        [stepping(IDS) for _ in range(2)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_positions_under_gradient_checkpointing(reentrant: bool) -> None:
    results = []
    for checkpointed in (False, True):
        model = gpt2().train()
        model.config.use_cache = False
        for dropout in model.modules():
            if isinstance(dropout, nn.Dropout):
                dropout.p = 0.0
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.enable_input_require_grads()
        with edit(model) as e:
            e.scale("transformer.h.0.mlp", 3.0, positions=[1, 2])
            model(IDS).logits.square().sum().backward()
        assert e.rows[0]["positions"] == "call 1: 1, 2"
        results.append(model.transformer.h[0].mlp.c_fc.weight.grad)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "layer",
    [nn.MultiheadAttention(4, 2), nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.GRU(4, 4, batch_first=False)],
)
def test_layers_with_tokens_before_samples_are_refused(layer: nn.Module) -> None:
    # With as many samples as tokens, nothing in the pass could tell.
    with pytest.raises(
        ValueError, match=r"'1' is, or is in, a .* with batch_first=False, with tokens before .*such as at"
    ):
        edit(nn.Sequential(nn.Embedding(9, 4), layer)).set("1", 0, part=0, positions=2)


def test_positions_of_a_gradient_that_never_came() -> None:
    net = gpt2()
    e = edit(net)
    e.set("transformer.h.0.mlp", 0, to="grad", positions=1)
    with pytest.raises(NotEditedError, match=r"got no gradient: backward"), e:
        net(IDS)


def test_layers_inside_xlnet_have_tokens_before_samples() -> None:
    from transformers import XLNetConfig, XLNetLMHeadModel

    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=4, d_inner=24)
    net = XLNetLMHeadModel(config).eval()
    x = torch.randint(3, 50, (6, 6))
    for wrong in ({"positions": 2}, {"samples": 2}):
        with pytest.raises(
            ValueError, match=r"layer 'transformer.layer.0' is, or is in, a XLNetModel, with tokens before"
        ):
            edit(net).set("transformer.layer.0", 0, part=0, **wrong)
    with torch.no_grad(), edit(net) as e:
        e.set("transformer", 0, part=0, positions=2)  # its own output has samples first
        assert (net(x).logits[:, 2] == net.lm_loss(torch.zeros(16))).all()


def test_a_state_that_does_not_say_how_many_tokens_came_before_is_refused() -> None:
    from transformers import RwkvConfig, RwkvModel

    torch.manual_seed(0)
    config = RwkvConfig(
        vocab_size=20, context_length=64, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16,
        intermediate_size=24,
    )  # fmt: skip
    net, ids = RwkvModel(config).eval(), torch.cat([IDS, IDS], 1)[:, :8]

    def in_two() -> None:
        first = net(ids[:, :4], use_cache=True)
        net(ids[:, 4:], state=first.state)

    e = edit(net)
    e.set("blocks.0", 0.0, positions=2, part=0)
    message = (
        "call 2: cannot determine which positions this call computes: the model was called with state, a state "
        "from an unknown number of earlier tokens"
    )
    with torch.no_grad(), pytest.raises(ValueError, match=message), e:
        in_two()
    with torch.no_grad(), edit(net) as e:
        e.set("blocks.0", 0.0, at[:, 2], part=0, calls=1)
        in_two()


@pytest.mark.parametrize(
    ("kind", "attn", "cache"),
    [
        ("Llama", "sdpa", None),  # a mask of two axes
        ("Llama", "eager", "static"),  # numbers to add
        ("Llama", "sdpa", "static"),  # booleans
        ("Mistral", "eager", "static"),  # a sliding window
        ("Qwen2", "eager", "static"),  # a dict of masks
    ],
)
def test_padding_on_the_left_is_said_also_under_a_static_cache(kind: str, attn: str, cache: str | None) -> None:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=32, pad_token_id=0, sliding_window=4,
    )  # fmt: skip
    config._attn_implementation = attn
    net = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    ids = torch.cat([IDS, IDS], 1)
    for padding in (0, 3):
        mask = torch.ones_like(ids)
        mask[1, :padding] = 0
        with warnings.catch_warnings(), torch.no_grad(), edit(net) as e:
            warnings.simplefilter("ignore")
            e.add("model.layers.0", 1.0, positions=2)
            net.generate(
                ids, attention_mask=mask, max_new_tokens=3, do_sample=False, eos_token_id=None,
                cache_implementation=cache,
            )  # fmt: skip
        said = (
            "samples [1] begin with padding, and positions= counts it: the first real token of sample 1 has position 3"
        )
        assert e.notes == ((said,) if padding else ())
        assert e.rows[0]["positions"] == "call 1: 2"


def test_a_cache_whose_first_layer_is_a_recurrence_is_asked_for_its_others() -> None:
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    torch.manual_seed(0)
    config = MiniMaxConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, num_local_experts=2, block_size=4, pad_token_id=0,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    net = MiniMaxForCausalLM(config).eval()
    with torch.no_grad(), warnings.catch_warnings(), edit(net) as e:
        warnings.simplefilter("ignore")
        e.add("model.layers.1", 1.0, positions=[0, 6], part=None)
        net.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert e.rows[0]["positions"] == "call 1: 0; call 3: 6"
