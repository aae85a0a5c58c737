"""A small language model written by hand, for the lenses and the token picker."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "purred", "."]


class Head(nn.Module):
    """One head, whose output is narrower than its input."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.qkv = nn.Sequential(nn.Linear(width, 3 * size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]


class Block(nn.Module):
    """Five heads in a list, more than the model has blocks, and two layers."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(Head(width, width // 5) for _ in range(5))
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        normed = self.norm(x)
        x = x + torch.cat([head(normed) for head in self.heads], -1)
        return x + self.mlp(x), None


class Reader(nn.Module):
    """Words and positions, three blocks that return tuples, a norm and a head without bias.

    Args:
        shared: one block, called three times.
        cap: squash the logits, as Gemma does, which no module shows.

    """

    def __init__(self, shared: bool = False, cap: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(len(WORDS), 20), nn.Embedding(40, 20)
        self.blocks = nn.ModuleList([Block()] if shared else [Block() for _ in range(3)])
        self.calls = 3 if shared else 1
        self.norm = nn.LayerNorm(20)
        self.head = nn.Linear(20, len(WORDS), bias=False)
        self.cap = cap
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in [*self.blocks] * self.calls:
            x, _ = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.tanh() if self.cap else logits


IDS = torch.tensor([[0, 1, 2, 3, 4, 5], [4, 1, 6, 7, 8, 9]])
