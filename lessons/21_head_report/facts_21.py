"""What chapter 21 says of its lists, run."""

import torch

import hookscope
from hookscope import samples
from hookscope_course.chapters.ch14_smollm2 import count_turned, giving_stories
from hookscope_course.chapters.ch21_cloakroom import cloakroom_lists, cloakroom_lm


@torch.no_grad()
def test_what_pushes_do_to_other_lists(says):
    says(
        "Its answer therefore never appears on the original list.",
        "because the thing differs from list to list.",
        "Without the hook, all of them do.",
        "If you make this vector shorter, it does less harm.",
    )
    lm, vectors = cloakroom_lm(), list[torch.Tensor]()
    for seed, name in ((1, "Clara"), (2, "Paul")):
        with hookscope.capture(lm, "blocks.0") as seen:
            lm(cloakroom_lists(100, seed=seed, comes=name).tokens)
        vectors.append(seen["blocks.0"].output[:, -1].mean(0))
    push = torch.eye(14)[-1:].T * (vectors[0] - vectors[1])
    for seed in range(3, 8):
        lists, right = cloakroom_lists(100, seed=seed), list[int]()
        assert len({*lists.answers.tolist()}) == 8, "eight things, so 100 lists cannot each have a different one"
        assert not (lists.tokens == lists.other_answers[:, None]).any()
        for strength in (0, 0.25, 0.5, 0.75, 1):
            with lm.blocks[0].register_forward_hook(lambda module, args, out, by=strength: out + by * push):
                right.append(int((lm(lists.tokens)[:, -1].argmax(-1) == lists.answers).sum()))
        assert right == sorted(right, reverse=True)
        assert right[0] == 100 > 2 * right[-1]


@torch.no_grad()
def test_a_head_of_the_first_block_looks_from_each_thing_at_its_owner(says):
    says("A head of `blocks.0` looks at the preceding name there, with at least 0.85 of its weight.")
    lm, lists = cloakroom_lm(), cloakroom_lists(100)
    weights = hookscope.attention(lm, lists.tokens)["blocks.0.attn"].weights
    things = [2, 5, 8, 11]  # <start> Anna hat , Ben key , …
    looks = torch.stack([weights[:, :, at, at - 1] for at in things], -1)
    assert looks.amin((0, 2)).max() > 0.85


def test_the_head_of_smollm2_works_at_the_last_token(says):
    says(
        "Patching the row of the last token turned some of the answers after block 20, and all of them after block 23.",
        "If you patch head 3 of block 23 at the last token alone, the number rises by 4.5 instead of 4.7.",
    )
    assert 0 < count_turned("model.layers.20", [-1]) < 8
    assert count_turned("model.layers.23", [-1]) == 8
    model, tokenizer = samples.english_lm()
    stories = giving_stories()
    clean, corrupted = (dict(tokenizer(texts, return_tensors="pt")) for texts in (stories.clean, stories.corrupted))
    right, wrong = (
        torch.tensor([tokenizer(f" {name}").input_ids for name in names]) for names in (stories.getters, stories.givers)
    )
    layer = model.model.layers[23].self_attn.o_proj
    kept = list[torch.Tensor]()
    columns = slice(3 * 64, 4 * 64)

    def lead(rows):
        def patch(module, args):
            mixed = args[0].clone()
            mixed[:, rows, columns] = kept[0][:, rows, columns]
            return (mixed,)

        with layer.register_forward_pre_hook(patch), torch.no_grad():
            logits = model(**corrupted).logits[:, -1]
        return float((logits.gather(1, right) - logits.gather(1, wrong)).mean())

    with layer.register_forward_pre_hook(lambda module, args: kept.append(args[0])), torch.no_grad():
        model(**clean)
    none, last, each = lead(slice(0)), lead(slice(-1, None)), lead(slice(None))
    assert (round(last - none, 1), round(each - none, 1)) == (4.5, 4.7)
