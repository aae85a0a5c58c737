"""Train the errand model reproducibly: python -m hookscope_course.errands.train.

The texts are made here, so nothing is downloaded. At the end, the heads of the last attention are put in another order,
and one that is not needed learns to look where the needed one looks: a decoy, so that looking is not enough.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hookscope.samples.stories import NAMES, PLACES, SelfAttention, StoryLM, story_tokens
from hookscope.samples.train_stories import UNSCORED
from hookscope.samples.train_stories import train as train_stories
from hookscope_course.errands.model import ERRAND_WEIGHTS, PEOPLE, errands, write_errand

TEXTS, STEPS = 20_000, 2000
_HEADS = 4


def texts(seed: int, count: int = TEXTS) -> tuple[Tensor, Tensor]:
    """Return texts, (count, 25), and the next-token targets; a name or a place that is new is not a target."""
    chance = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        who = torch.randperm(len(NAMES), generator=chance)[:PEOPLE]
        where = torch.randperm(len(PLACES), generator=chance)[:PEOPLE]
        asked = int(torch.randint(PEOPLE, (), generator=chance))
        written = write_errand([NAMES[n] for n in who], [PLACES[n] for n in where], asked)
        rows.append(story_tokens([*written, "."]))
    tokens = torch.cat(rows)
    targets = tokens[:, 1:].clone()
    new = [6 * person + word for person in range(PEOPLE) for word in (0, 4)] + [6 * PEOPLE + 1]
    targets[:, new] = UNSCORED
    return tokens[:, :-1], targets


@torch.no_grad()
def right(model: nn.Module, without: tuple[int, int] | None = None) -> float:
    """Return the fraction of new texts that end in the right place, also without a head (block, head)."""
    tokens, places, _ = errands(1000, seed=99)
    if without is None:
        return float((model(tokens)[:, -1].argmax(-1) == places).float().mean())
    block, head = without

    def silence(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[..., 16 * head : 16 * head + 16] = 0
        return (x,)

    with model.get_submodule(f"blocks.{block}.attn.proj").register_forward_pre_hook(silence):
        return float((model(tokens)[:, -1].argmax(-1) == places).float().mean())


@torch.no_grad()
def disguise(model: StoryLM, seed: int = 5) -> None:
    """Put the heads of the last attention in another order, with a decoy among them."""
    attn = model.get_submodule("blocks.1.attn")
    assert isinstance(attn, SelfAttention)
    chance = torch.Generator().manual_seed(seed)
    needed = min(range(_HEADS), key=lambda head: right(model, (1, head)))
    spare = max((head for head in range(_HEADS) if head != needed), key=lambda head: right(model, (1, head)))
    weight = attn.qkv.weight.clone().view(3, _HEADS, 16, -1)
    bias = attn.qkv.bias.clone().view(3, _HEADS, 16)
    columns = attn.proj.weight.clone().view(-1, _HEADS, 16)
    for each in (weight, bias):
        each[:2, spare] = each[:2, needed]
        each[0, spare] *= 1.3  # it looks there even more
    weight[2, spare] = 0.5 * weight[2, needed][torch.randperm(16, generator=chance)]  # and writes something else
    order = torch.randperm(_HEADS, generator=chance)
    attn.qkv.weight.copy_(weight[:, order].flatten(0, 2))
    attn.qkv.bias.copy_(bias[:, order].flatten())
    attn.proj.weight.copy_(columns[:, order].flatten(1))


def main() -> None:
    """Train the model, disguise its heads, print what each is worth, and write the weights."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)  # a fixed order of summation
    torch.use_deterministic_algorithms(True)
    model = train_stories(*texts(seed=0), steps=STEPS)
    print(f"right: {right(model):.3f}")
    disguise(model)
    print(f"disguised: {right(model):.3f}")
    for block in (0, 1):
        for head in range(_HEADS):
            print(f"without head {head} of block {block}: {right(model, (block, head)):.3f}")
    save_file(model.state_dict(), ERRAND_WEIGHTS)
    print(f"wrote {ERRAND_WEIGHTS.name}, {ERRAND_WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
