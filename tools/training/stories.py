"""Train the story model reproducibly: python -m tools.training.stories.

This script makes the texts, so nothing is downloaded. There are three kinds: stories about giving, sentences whose verb
agrees with its subject, and rows of words that repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope.samples.stories import (
    MANY,
    MANY_DO,
    NAMES,
    ONE,
    ONE_DOES,
    PLACES,
    STORY_WEIGHTS,
    STORY_WORDS,
    THINGS,
    SelfAttention,
    StoryLM,
    story_lm,
    story_tokens,
)

TEXTS, STEPS, BATCH, RATE = 20_000, 1500, 64, 3e-3
SHARE_ROWS, SHARE_GIVING = 0.4, 0.65  # the fraction of texts that are rows, and of other sentences about giving
PRICE = 0.025  # penalty on the weights of a head, so that few heads do the work; it rises over 1000 steps
DECAY = 1.0  # weight decay, large enough that the model cannot memorize pairs of names
ROW = (*NAMES, *PLACES, *THINGS, *ONE, *MANY)  # the words in rows
UNSCORED = -100  # a target that the loss leaves out


class Writer:
    """Generates random texts.

    Each pair of names, of a subject and its neighbor, and of consecutive words in a row is either for training or held
    out.
    """

    def __init__(self, seed: int, held_out: bool) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._held_out = held_out

    def below(self, count: int) -> int:
        """Return a random integer from 0 to count - 1."""
        return int(torch.randint(count, (1,), generator=self._generator))

    def one_of(self, words: tuple[str, ...]) -> str:
        """Return a random word."""
        return words[self.below(len(words))]

    def _pair(self, count: int) -> tuple[int, int]:
        """Return two different random integers whose pair is for training or held out. Every fifth is held out."""
        while True:
            first, second = self.below(count), self.below(count)
            if first != second and ((first + second) % 5 == 0) == self._held_out:
                return first, second

    def giving(self) -> list[str]:
        """Return a story about giving. Its last name follows from the other names."""
        pair = [NAMES[place] for place in self._pair(len(NAMES))]
        giver = self.below(2)
        place, thing = self.one_of(PLACES), self.one_of(THINGS)
        opening, middle = (("when", ","), ("then", "and"))[self.below(2)]
        text = f"{opening} {pair[0]} and {pair[1]} went to the {place} {middle} {pair[giver]} gave the {thing} to"
        return [*text.split(), pair[1 - giver], "."]

    def agreeing(self) -> list[str]:
        """Return a sentence whose verb agrees with its subject and not with the noun next to it."""
        subject, other = self._pair(len(ONE))
        many, others = self.below(2), self.below(2)
        verb = self.one_of(MANY_DO if many else ONE_DOES)
        return f"the {(ONE, MANY)[many][subject]} near the {(ONE, MANY)[others][other]} {verb} .".split()

    def row(self, words: int, length: int, before: int = 0) -> list[str]:
        """Return `before` different words, followed by `words` other ones that repeat up to `length`."""
        drawn: list[int] = []
        while len(drawn) < before + words:
            new = self.below(len(ROW))
            if new not in drawn and (not drawn or self._may_follow(drawn[-1], new)):
                drawn.append(new)
            if len(drawn) == before + words and not self._held_out and not self._may_follow(drawn[-1], drawn[before]):
                drawn.pop()  # the first word follows the last one when the row repeats
        written = drawn[:before] + drawn[before:] * (length // words + 1)
        return [ROW[word] for word in written[:length]]

    def _may_follow(self, first: int, second: int) -> bool:
        return ((first - second) % 5 == 1) == self._held_out

    def text(self, length: int) -> tuple[list[str], int]:
        """Return a text, and the number of its words that cannot be predicted."""
        if self.below(100) < 100 * SHARE_ROWS:
            before, words = self.below(7), 2 + self.below(15)
            return self.row(words, length, before), before + words + 1
        text: list[str] = []
        while len(text) < length:
            text += self.giving() if self.below(100) < 100 * SHARE_GIVING else self.agreeing()
        return text[:length], 0


def texts(seed: int, count: int = TEXTS) -> tuple[Tensor, Tensor]:
    """Return training texts as token IDs and as next-token targets, both of shape (count, 40).

    The first round of a row, and the first word of its second round, are not targets because they are random.
    """
    writer, length = Writer(seed, held_out=False), StoryLM.length
    written = [writer.text(length) for _ in range(count)]
    tokens = torch.cat([story_tokens(text) for text, _ in written])
    targets = tokens[:, 1:].clone()
    for row, (_, unknown) in zip(targets, written, strict=True):
        row[:unknown] = UNSCORED
    return tokens[:, :-1], targets


def train(tokens: Tensor, targets: Tensor, steps: int = STEPS) -> StoryLM:
    """Fit a StoryLM: cross-entropy with a penalty on each head, AdamW, a cosine schedule."""
    model = story_lm(trained=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, step / 100) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        which = torch.randint(len(tokens), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(tokens[which]).flatten(0, 1), targets[which].flatten(), ignore_index=UNSCORED)
        loss = loss + PRICE * min(1, step / 1000) * torch.stack([*map(costs, attentions(model))]).sum(1).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 250 == 0:
            shares = ", ".join(f"{what.__name__} {what(model):.1%}" for what in (giving, agreeing, repeating))
            print(f"step {step:4}: loss {loss.item():.3f}; held out: {shares}", flush=True)
    return model.eval()


def attentions(model: nn.Module) -> list[SelfAttention]:
    """List the attention of each block."""
    return [module for module in model.modules() if isinstance(module, SelfAttention)]


def costs(attn: SelfAttention) -> Tensor:
    """Return for each head the norm of its value rows in `qkv` and its columns in `proj`, together.

    This is the group lasso: the norm is not squared, so the weights of an unimportant head go to zero.
    """
    width = attn.qkv.in_features
    takes = attn.qkv.weight[2 * width :].reshape(attn.num_heads, -1, width)
    writes = attn.proj.weight.reshape(width, attn.num_heads, -1).transpose(0, 1)
    return (takes.square().sum((1, 2)) + writes.square().sum((1, 2))).sqrt()


@torch.no_grad()
def giving(model: nn.Module, count: int = 500, held_out: bool = True) -> float:
    """Return the fraction of stories that end in the right name, for held-out or training pairs of names."""
    writer = Writer(1, held_out)
    stories = [writer.giving() for _ in range(count)]
    tokens = torch.cat([story_tokens(story) for story in stories])
    return float((model(tokens[:, :-2])[:, -1].argmax(-1) == tokens[:, -2]).float().mean())


@torch.no_grad()
def agreeing(model: nn.Module, count: int = 500) -> float:
    """Return the fraction of held-out sentences in which the most likely verb agrees with its subject."""
    writer = Writer(2, held_out=True)
    sentences = [writer.agreeing() for _ in range(count)]
    tokens = torch.cat([story_tokens(sentence) for sentence in sentences])
    found = [STORY_WORDS[token] for token in model(tokens[:, :-2])[:, -1].argmax(-1).tolist()]
    return sum(
        verb in (MANY_DO if sentence[1] in MANY else ONE_DOES) for verb, sentence in zip(found, sentences, strict=True)
    ) / len(sentences)


@torch.no_grad()
def repeating(model: nn.Module, words: Iterable[int] = range(6, 17), count: int = 40) -> float:
    """Return the fraction of words in the second round of held-out rows that are predicted."""
    writer, right, total = Writer(3, held_out=True), 0, 0
    for size in words:
        tokens = torch.cat([story_tokens(writer.row(size, 2 * size)) for _ in range(count)])
        found = model(tokens[:, :-1])[:, size + 1 :].argmax(-1) == tokens[:, size + 2 :]
        right, total = right + int(found.sum()), total + found.numel()
    return right / total


@torch.no_grad()
def heads(model: StoryLM, words: int = 12, count: int = 50) -> Iterator[str]:
    """Yield a line for each head: where it attends, and the accuracy of the model without it.

    In the second round of rows: the weight on the word before, and on the word after the same word. In stories: the
    weight from the last word to the right name and to the giver. "Without it": its input to `proj` is zero.
    """
    writer = Writer(4, held_out=True)
    rows = torch.cat([story_tokens(writer.row(words, 2 * words)) for _ in range(count)])
    stories = [writer.giving()[:-1] for _ in range(count)]
    texts = torch.cat([story_tokens(story[:-1]) for story in stories])
    place, story = torch.arange(words + 2, 2 * words), torch.arange(count)
    right = torch.tensor([1 + text.index(text[-1]) for text in stories])
    for number, attn in enumerate(attentions(model)):
        in_row, in_story = _attention_weights(model, attn, rows), _attention_weights(model, attn, texts)
        for head in range(attn.num_heads):
            shares = {
                "before": in_row[:, head, place, place - 1],
                "after the same": in_row[:, head, place, place - words + 1],
                "right name": in_story[story, head, -1, right],
                "giver": in_story[story, head, -1, 6 - right],  # the names are tokens 2 and 4
            }
            looks = ", ".join(f"{where} {float(share.mean()):.2f}" for where, share in shares.items())
            with _ablate(attn, head):
                left = ", ".join(f"{what.__name__} {what(model):.1%}" for what in (giving, agreeing, repeating))
            yield f"block {number}, head {head}: {looks}; without it: {left}"


def _attention_weights(model: nn.Module, attn: SelfAttention, tokens: Tensor) -> Tensor:
    """Return the weights of the attention, (N, heads, T, T), computed again from its queries and keys."""
    found: list[Tensor] = []
    with attn.qkv.register_forward_hook(lambda _, args, output: found.append(output)):
        model(tokens)
    q, k, _ = found[0].reshape(*tokens.shape, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(future, -math.inf), -1)


def _ablate(attn: SelfAttention, head: int) -> RemovableHandle:
    """Replace the output of a head with zeros, until the handle is removed."""

    def silence(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        mixed = args[0].reshape(*args[0].shape[:-1], attn.num_heads, -1).clone()
        mixed[..., head, :] = 0
        return (mixed.flatten(-2),)

    return attn.proj.register_forward_pre_hook(silence)


def main() -> None:
    """Train the model, print its accuracy on held-out texts, and write the weights."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)  # a fixed order of summation
    torch.use_deterministic_algorithms(True)
    model = train(*texts(seed=0))
    print(*heads(model), sep="\n")
    save_file(model.state_dict(), STORY_WEIGHTS)
    print(f"wrote {STORY_WEIGHTS.name}, {STORY_WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
