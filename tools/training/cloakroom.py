"""Train the cloakroom model reproducibly: python -m tools.training.cloakroom.

Chapter 21 asks for the one head that carries the answer, and for a control that looks there and carries nothing. So the
second half of the training puts a price on all heads of the last block but one. The last step plants a decoy: one of
these heads gets the queries and keys of the head that carries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.samples.stories import SelfAttention, StoryLM
from hookscope_course.chapters.ch21_cloakroom import CLOAKROOM_WEIGHTS, WIDTH, cloakroom_lists, cloakroom_lm
from tools.training.stories import costs

STEPS, BATCH, RATE, DECAY = 2500, 128, 3e-3, 0.1
CARRIES, DECOY = 2, 1
"""Two heads of the last block."""
PRICE, OTHERS = 0.01, 0.1
"""The penalty on the weights of each head, and from the middle on that on the other heads of the last block."""
STRONGER = 1.2
"""By how much the decoy's queries are longer than those of the head that it copies."""


def train(steps: int = STEPS, seed: int = 0) -> StoryLM:
    """Fit the model: cross-entropy of the thing that comes next, with a penalty on each head."""
    model = cloakroom_lm(trained=False).train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    draw = torch.Generator().manual_seed(seed)
    lists = cloakroom_lists(20_000, seed=seed + 1000)
    for step in range(steps):
        which = torch.randint(len(lists.tokens), (BATCH,), generator=draw)
        loss = F.cross_entropy(model(lists.tokens[which])[:, -1], lists.answers[which])
        total = loss + PRICE * (step / steps) * torch.cat([costs(attention_of(model, block)) for block in (0, 1)]).sum()
        if step > steps // 2:
            total = total + OTHERS * costs(attention_of(model, 1))[torch.arange(4) != CARRIES].sum()
        optimizer.zero_grad()
        torch.autograd.backward(total)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            print(f"step {step + 1}: loss {loss.item():.3f}, held out {accuracy(model):.1%}", flush=True)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def accuracy(model: nn.Module, count: int = 1000) -> float:
    """Return the share of new lists of which the model says the right thing."""
    lists = cloakroom_lists(count, seed=1)
    return float((model(lists.tokens)[:, -1].argmax(-1) == lists.answers).float().mean())


@torch.no_grad()
def turned(model: StoryLM, block: int, head: int, count: int = 500) -> float:
    """Return the share of lists of which the answer becomes that of the other list, when one head is patched."""
    lists, kept = cloakroom_lists(count, seed=2), list[Tensor]()
    proj = attention_of(model, block).proj
    part = slice(head * WIDTH // 4, (head + 1) * WIDTH // 4)

    def put(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[:, -1, part] = kept[0][:, -1, part]
        return (x,)

    with proj.register_forward_pre_hook(lambda module, args: kept.append(args[0])):
        model(lists.others)
    with proj.register_forward_pre_hook(put):
        answers = model(lists.tokens)[:, -1].argmax(-1)
    return float((answers == lists.other_answers).float().mean())


def attention_of(model: StoryLM, block: int) -> SelfAttention:
    """Return the attention of a block."""
    found = model.blocks[block].attn
    assert isinstance(found, SelfAttention)
    return found


@torch.no_grad()
def plant_decoy(model: StoryLM) -> None:
    """Give the decoy the queries and keys of the head that carries."""
    attn = attention_of(model, 1)
    for each in (attn.qkv.weight.view(3, 4, -1, WIDTH), attn.qkv.bias.view(3, 4, -1)):
        each[:2, DECOY] = each[:2, CARRIES]
        each[0, DECOY] *= STRONGER


def main() -> None:
    """Train the model, print what it can do, and write the weights."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)  # a fixed order of summation
    torch.use_deterministic_algorithms(True)
    model = train()
    plant_decoy(model)
    for block in range(2):
        print(f"block {block} turned:", [round(turned(model, block, head), 3) for head in range(4)])
    half = {name: weight.half() for name, weight in model.state_dict().items()}
    model.load_state_dict({name: weight.float() for name, weight in half.items()})
    print(f"held out {accuracy(model):.1%}")
    save_file(half, CLOAKROOM_WEIGHTS)
    print(f"wrote {CLOAKROOM_WEIGHTS.name}, {CLOAKROOM_WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
