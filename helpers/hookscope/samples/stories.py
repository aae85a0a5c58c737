"""A small language model for stories about giving, and its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.samples.bundled import load_bundled

STORY_WEIGHTS = Path(__file__).with_name("story_lm.safetensors")
"""The weights that `tools/training/stories.py` writes and `story_lm` loads."""
START = "<start>"
"""The first token of every text."""
NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry",
    "Iris", "Jack", "Kate", "Leo", "Mary", "Noah", "Olga", "Paul",
)  # fmt: skip
PLACES = ("park", "school", "garden", "kitchen", "market", "library", "station", "beach")
THINGS = ("ball", "book", "key", "apple", "hat", "letter", "cup", "lamp")
ONE = ("dog", "cat", "bird", "horse", "child", "friend", "teacher", "baker")
MANY = ("dogs", "cats", "birds", "horses", "children", "friends", "teachers", "bakers")
ONE_DOES = ("runs", "sleeps", "sings", "waits")
MANY_DO = ("run", "sleep", "sing", "wait")
STORY_WORDS = (
    *(START, ".", ",", "when", "then", "and", "went", "to", "the", "gave", "near"),
    *NAMES, *PLACES, *THINGS, *ONE, *MANY, *ONE_DOES, *MANY_DO,
)  # fmt: skip
"""The vocabulary of the model. The index in this tuple is the token ID."""
_TOKENS = {word: token for token, word in enumerate(STORY_WORDS)}


def story_tokens(text: str | Iterable[str]) -> Tensor:
    """Convert a text to token IDs, with the start token in front.

    Args:
        text: words separated by spaces (also around commas and periods), or a list of words.

    Returns:
        int64, shape (1, words + 1): a batch of one.

    Raises:
        ValueError: a word is not in `STORY_WORDS`; suggests similar words.

    Example:
        >>> story_tokens("the dogs near the cat run .").shape
        torch.Size([1, 8])

    """
    words = text.split() if isinstance(text, str) else list(text)
    for word in words:
        if word not in _TOKENS:
            near = get_close_matches(word, STORY_WORDS)
            hint = (
                f"; did you mean {' or '.join(map(repr, near))}?" if near else ". samples.STORY_WORDS lists its words"
            )
            raise ValueError(f"the word {word!r} is not in the vocabulary{hint}")
    return torch.tensor([[_TOKENS[START], *(_TOKENS[word] for word in words)]])


def story_words(tokens: Tensor) -> list[str]:
    """Convert the token IDs of one text back to words.

    Args:
        tokens: integers, shape (T,) or (1, T).

    Raises:
        ValueError: there is more than one text, or an ID without a word.

    Example:
        >>> story_words(story_tokens("the dogs run ."))
        ['<start>', 'the', 'dogs', 'run', '.']

    """
    if tokens.dim() == 2 and len(tokens) == 1:
        tokens = tokens[0]
    if tokens.dim() != 1:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}, which is more than one text. Pass tokens[0]")
    found = tokens.tolist()
    if wrong := [token for token in found if token not in range(len(STORY_WORDS))]:
        raise ValueError(f"no token {wrong[0]}: there are {len(STORY_WORDS)} tokens, counted from 0")
    return [STORY_WORDS[token] for token in found]


class SelfAttention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output, (N, T, width), for x of the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and an MLP. Each adds its output to the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        for name, layer in {
            "up": nn.Linear(width, 4 * width),
            "act": nn.GELU(),
            "down": nn.Linear(4 * width, width),
        }.items():
            self.mlp.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream, (N, T, width), for x of the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class StoryLM(nn.Module):
    """A causal transformer over `STORY_WORDS`.

    `tokens` and `positions` are embeddings; their sum starts the residual stream. `blocks` has two blocks, each with
    `norm1`, `attn` (`qkv`, `proj`), `norm2` and `mlp` (`up`, `act`, `down`). `norm` and `head` make the logits.

    Attributes:
        length: the maximum number of tokens, 40.

    Example:
        >>> StoryLM()(story_tokens("the dogs near the cat")).shape
        torch.Size([1, 6, 67])

    """

    length = 40

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(STORY_WORDS), width)
        self.positions = nn.Embedding(self.length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(STORY_WORDS), bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next token, (N, T, 67), for tokens of shape (N, T) with T up to `length`.

        Raises:
            ValueError: there are more than `length` tokens.

        """
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"the text has {tokens.shape[1]} tokens, but the model reads at most {self.length}. Pass a shorter text"
            )
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def story_lm(trained: bool = True) -> StoryLM:
    """Return a `StoryLM` in eval mode.

    The trained model can do three things, on combinations of words that were not in the training data. It names the
    person who gets the gift (in 2,937 of 3,000 stories), makes the verb agree in number with its subject (in 3,000 of
    3,000 sentences), and continues a repeated list of words (22,000 words, 7 mistakes).

    Args:
        trained: load the trained weights of the package. Otherwise the weights are random, and the same in each call.

    Returns:
        A new model. The global random state does not change.

    Example:
        >>> text = "when Mary and Leo went to the park , Leo gave the ball to"
        >>> STORY_WORDS[int(story_lm()(story_tokens(text))[0, -1].argmax())]
        'Mary'

    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = StoryLM()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 if "mlp" in name else 0.08 if "attn" in name else 0.1)
        angles = torch.arange(model.length)[:, None] * 100 ** -torch.linspace(0, 1, model.positions.embedding_dim // 2)
        model.positions.weight.data = 0.1 * torch.cat([angles.sin(), angles.cos()], 1)  # neighbors are similar
    if trained:
        model.load_state_dict(load_bundled(STORY_WEIGHTS, "a trained StoryLM"))
    return model.eval()
