"""What chapter 21 says of its lists, run."""

import torch

import hookscope
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
