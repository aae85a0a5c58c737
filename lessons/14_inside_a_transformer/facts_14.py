"""What chapter 14 says beyond its cells, run."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course.chapters import ch14_sentence_encoder as encoder
from tests.shared.language_models import llama


def test_a_fused_encoder_calls_none_of_its_modules(says):
    says(
        "`nn.TransformerEncoderLayer` with `batch_first=True`, in eval mode and without gradients, can compute "
        "everything in one fused operation. Then it calls none of its modules.",
        "But if one of them has a forward hook, it calls them all.",
        "`nn.MultiheadAttention` uses the weight and the bias of its `out_proj`, but does not call it.",
    )
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    called = list[nn.Module]()

    def children_called(grads: bool = False, **kinds: Any) -> int:
        """Run it with hooks that do nothing on its first Linear, and count the children that were called."""
        called.clear()
        anywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
        handles = [getattr(encoder.linear1, kind)(hook) for kind, hook in kinds.items()]
        with torch.set_grad_enabled(grads):
            encoder(x)
        for handle in [anywhere, *handles]:
            handle.remove()
        return len({*called} - {encoder})

    every = len([module for module in encoder.modules() if module not in (encoder, encoder.self_attn.out_proj)])
    assert children_called() == 0
    assert children_called(register_forward_hook=lambda *_: None) == every
    assert children_called(register_forward_pre_hook=lambda *_: None) == every
    assert children_called(grads=True) == every
    encoder.train()
    assert children_called() == every
    encoder.eval().self_attn.batch_first = False
    assert children_called() == every


def test_weights_by_hand(says):
    says("With the output of `qkv` in `made`, you can compute the weights yourself:")
    lm, tokens = samples.story_lm(), samples.story_tokens("the dogs near the cat")
    with hookscope.capture(lm, "blocks.1.attn.qkv") as seen, torch.no_grad():
        lm(tokens)
    made = seen["blocks.1.attn.qkv"].output
    q, k, _ = made.unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    by_hand = scores.masked_fill(later, -torch.inf).softmax(-1)
    found = hookscope.attention(lm, tokens)["blocks.1.attn"].weights
    assert torch.allclose(found, by_hand, atol=1e-6)
    assert found[0, 0, -1].argmax() == 2, "head 0 takes most from dogs"


OTHERS = (
    "A tall woman sold fresh bread to the children in front of the school.",
    "Nobody knew why the river had changed its course during the winter.",
    "The museum opens at nine and closes before dinner.",
    "He fixed the broken radio with a piece of wire and some tape.",
)


def test_the_heads_do_the_same_for_other_sentences(says):
    says(
        "One head of layer 0 looks at the previous token, and one head of layer 1 looks at the next.",
        "but 31 heads give that much to `[CLS]`.",
        "For most heads, the value vector of `[CLS]` is short.",
        "a weight of 1 on `[CLS]` brings no more than a weight of 0.14 on an average other token.",
    )
    model, tokenizer = samples.sentence_encoder()
    counts, longest = [], []
    for sentence in (encoder.SENTENCE, *OTHERS):
        batch = dict(tokenizer(sentence, return_tensors="pt"))
        maps = hookscope.attention(model, kwargs=batch)
        found = torch.cat([maps[name].weights for name in maps])
        assert found.diagonal(-1, -2, -1).mean(-1)[0, 2] > 0.99
        assert found.diagonal(1, -2, -1).mean(-1)[1, 8] > 0.5
        assert found[..., :-1, -1].mean(-1).max() < 0.2
        with hookscope.capture(model, "encoder.layer.*.attention.self.value") as seen, torch.no_grad():
            model(**batch)
        norms = torch.stack([seen[name].output[0].unflatten(-1, (12, -1)).norm(dim=-1).T for name in seen])
        to_start = found[..., 1:, 0].mean(-1) > 0.5
        counts.append(int(to_start.sum()))
        share = norms[..., 0] / norms[..., 1:-1].mean(-1)
        assert 0.02 < share[to_start].median() < 0.05
        longest.append((norms[..., 0] / norms[..., 1:].mean(-1))[to_start].max().item())
    assert (counts[0], longest[0] < 0.14, max(longest) < 0.16) == (31, True, True)
    assert min(counts) > 20


def test_what_a_hook_gets_in_the_transformers_library(says):
    says(
        "A layer of this model returns a tensor, its `attention` returns a tuple that begins with a tensor, and the "
        "model returns a `ModelOutput`.",
        "`output[0]` of a tensor is the first *text* of the batch",
        "the output of `layer[4]` is `hidden_states[5]`.",
        "the library registers forward hooks, but it does not remove them.",
        "In BERT, a norm follows each addition, and the layer returns the normalized sum.",
    )
    model, _, batch, _ = encoder.load_encoder()
    kinds, layer = dict[str, Any](), "encoder.layer.4"
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: kinds.__setitem__(name, output)
        )
        for name in ("", layer, f"{layer}.attention")
    ]
    asked = copy.deepcopy(model)
    with torch.no_grad():
        model(**batch)
        for handle in handles:
            handle.remove()
        hidden = asked(**batch, output_hidden_states=True).hidden_states
    assert isinstance(kinds[layer], Tensor)
    assert isinstance(kinds[f"{layer}.attention"], tuple)
    assert type(kinds[""]).__name__.startswith("BaseModelOutput")
    assert kinds[layer][0].shape == kinds[layer].shape[1:], "of a tensor, [0] is the first text"
    assert len(hidden) == 7
    assert torch.equal(hidden[5], kinds[layer])
    assert len(hookscope.census(model)) == 0
    assert len(hookscope.census(asked)) > 3, "the copied hooks, and those of the library"
    norm = model.encoder.layer[4].output.LayerNorm
    assert torch.allclose(norm(kinds[layer]).mean(-1), torch.zeros(1), atol=1), "it is a norm that returns the sum"


def test_llama_passes_hidden_states_by_name_to_its_attention(says):
    says(
        "Some modules get their input as a keyword argument, for example the `self_attn` of Llama. Then `args` is `()`."
    )
    model: Any = llama()
    seen = []

    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        seen.append((args, kwargs["hidden_states"]))

    with model.model.layers[0].self_attn.register_forward_pre_hook(hook, with_kwargs=True), torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    [(args, hidden)] = seen
    assert args == ()
    assert isinstance(hidden, Tensor)


def test_what_smollm2_does(says):
    says(
        "It is a Llama model with 30 blocks of nine heads each, and its vocabulary has 49,152 tokens.",
        "Its 135 million parameters take 540 MB of memory.",
        "*Anna* is right, and the model gives it a probability of 0.82.",
        "After *ball*, the lens puts *to* first from block 24 on, and after the first *Ben*, it puts the comma first "
        "from block 14 on.",
        "about half of the 270 heads give it more than half of their weight.",
        "at least five heads look mostly at the previous token, and at least three at the word after the earlier "
        "occurrence.",
    )
    model, tokenizer = samples.english_lm()
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.vocab_size) == (30, 9, 49_152)
    parameters = list(model.parameters())
    assert round(sum(each.numel() for each in parameters) / 1e6) == 135
    assert round(sum(each.nbytes for each in parameters) / 1e6, -1) == 540
    batch = dict(tokenizer("When Anna and Ben went to the park, Ben gave the ball to", return_tensors="pt"))
    with torch.no_grad(), hookscope.capture(model, "model.layers.*") as seen:
        probabilities = model(**batch).logits[0, -1].softmax(-1)
    words = torch.stack([model.lm_head(model.model.norm(seen[name].output[0])).argmax(-1) for name in seen])
    for position, word, first in ((12, " to", 24), (3, ",", 14)):
        assert [tokenizer.decode(token) == word for token in words[:, position]] == [
            block >= first for block in range(30)
        ]
    assert abs(float(probabilities[tokenizer(" Anna")["input_ids"][0]]) - 0.82) < 0.005
    again = torch.arange(20, 39)
    for seed in range(3):
        row = torch.randint(1000, 40_000, (4, 20), generator=torch.Generator().manual_seed(seed))
        maps = hookscope.attention(model, torch.cat([row, row], dim=1))
        weights = torch.stack([maps[name].weights.mean(0) for name in maps])  # (layers, heads, from, to)
        assert 120 < int((weights[..., 1:, 0].mean(-1) > 0.5).sum()) < 160
        assert int((weights.diagonal(-1, -2, -1).mean(-1) > 0.5).sum()) >= 5
        assert int((weights[..., again, again - 19].mean(-1) > 0.5).sum()) >= 3
