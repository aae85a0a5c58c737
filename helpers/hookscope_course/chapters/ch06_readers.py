"""A better reader for chapter 06, and networks that were never trained."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope import samples

__all__ = ["build_untrained", "discount_spread"]

RIDGE = 1e-6
"""Added to the spread, as a part of its mean: a channel that is 0 everywhere has no spread to divide by."""


def build_untrained(seed: int) -> samples.DigitCNN:
    """Build a digit CNN with random weights; seed 0 gives those of `samples.digit_cnn(trained=False)`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return samples.DigitCNN().eval()


def discount_spread(known: Tensor, labels: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale features so that digits of the same class differ equally in all directions.

    The nearest center is then that of a linear discriminant analysis.

    Args:
        known: features of the digits whose class is known, (M, F).
        labels: their classes.
        new: features of other digits, (N, F).

    Example:
        >>> known, labels = torch.tensor([[0.0, 0], [20, 0], [10, 1], [10, -1]]), torch.tensor([3, 3, 3, 3])
        >>> known.std(0)
        tensor([8.1650, 0.8165])
        >>> discount_spread(known, labels, known)[0].std(0).round(decimals=1).tolist()
        [1.2, 1.2]

    """
    known, new = known.double(), new.double()  # in float32 the smallest directions are noise
    within = known.clone()
    for each in set(labels.tolist()):
        within[labels == each] -= known[labels == each].mean(0)
    spread = within.T @ within / len(known)
    spread += RIDGE * spread.diagonal().mean() * torch.eye(len(spread))
    root = torch.linalg.cholesky(spread)
    known, new = (torch.linalg.solve_triangular(root, each.T, upper=False).T for each in (known, new))
    return known, new
