"""A small language model that reads stories about who gave what to whom, and the words it knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.samples.bundled import load_bundled

STORY_WEIGHTS = Path(__file__).with_name("story_lm.safetensors")
"""What `story_lm` loads and `train_stories.py` writes."""
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
"""All words that the model knows; the place in this tuple is the token."""
_TOKENS = {word: token for token, word in enumerate(STORY_WORDS)}


def story_tokens(text: str | Iterable[str]) -> Tensor:
    """Turn a text into tokens, with the start token before it.

    Args:
        text: words with spaces between them (and around commas and full stops), or a list of words.

    Returns:
        int64, shape (1, words + 1): a batch of one.

    Raises:
        ValueError: a word is not among `STORY_WORDS`; names the nearest.

    Example:
        >>> story_tokens("the dogs near the cat run .").shape
        torch.Size([1, 8])

    """
    words = text.split() if isinstance(text, str) else list(text)
    for word in words:
        if word not in _TOKENS:
            near = get_close_matches(word, STORY_WORDS)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; samples.STORY_WORDS has all"
            raise ValueError(f"the model does not know the word {word!r}{hint}")
    return torch.tensor([[_TOKENS[START], *(_TOKENS[word] for word in words)]])


def story_words(tokens: Tensor) -> list[str]:
    """Turn the tokens of one text back into words.

    Args:
        tokens: integers, shape (T,) or (1, T).

    Raises:
        ValueError: there is more than one text, or a token that is no word.

    Example:
        >>> story_words(story_tokens("the dogs run ."))
        ['<start>', 'the', 'dogs', 'run', '.']

    """
    if tokens.dim() == 2 and len(tokens) == 1:
        tokens = tokens[0]
    if tokens.dim() != 1:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}: give those of one text, tokens[0]")
    found = tokens.tolist()
    if wrong := [token for token in found if token not in range(len(STORY_WORDS))]:
        raise ValueError(f"no token {wrong[0]}: there are {len(STORY_WORDS)}, counted from 0")
    return [STORY_WORDS[token] for token in found]


class SelfAttention(nn.Module):
    """Each token takes from itself and those before it; `heads` ways of doing so, side by side."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each token took, (N, T, width), for x of that shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then two linear layers; each adds what it has found to the residual stream."""

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
        """Return the residual stream, (N, T, width), for x of that shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class StoryLM(nn.Module):
    """A causal transformer over `STORY_WORDS`: tokens and positions, blocks, a norm and a head.

    `tokens` and `positions` are embeddings, their sum is the residual stream; `blocks` has two blocks (`norm1`, `attn`
    with `qkv` and `proj`, `norm2`, `mlp` with `up`, `act` and `down`); `norm` and `head` make logits of what is left.

    Attributes:
        length: how many tokens it reads at most, 40.

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
            ValueError: there are more tokens.

        """
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"{tokens.shape[1]} tokens, but the model reads {self.length} at most: give a shorter text"
            )
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def story_lm(trained: bool = True) -> StoryLM:
    """Build a `StoryLM` in eval mode, ready to be hooked.

    Trained, it knows three things, each on words put together as they never were in training: who gets what somebody
    gives (right in 2,937 of 3,000 stories), whether one runs or many run (in all of 3,000 sentences), and how a row of
    words that it has read goes on when it begins again (22,000 words but 7). `train_stories.py` has the measures.

    Args:
        trained: take the weights that come with the package; otherwise random ones, the same at every call.

    Returns:
        A new model at every call. The global random number generator is left alone.

    Raises:
        ModuleNotFoundError: safetensors is not installed.
        RuntimeError: the file with the weights is damaged.

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
        model.positions.weight.data = 0.1 * torch.cat([angles.sin(), angles.cos()], 1)  # neighbours are alike
    if trained:
        model.load_state_dict(load_bundled(STORY_WEIGHTS, "a trained StoryLM"))
    return model.eval()
