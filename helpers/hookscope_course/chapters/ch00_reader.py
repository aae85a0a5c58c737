"""The colleague's program of chapter 00: its code on the page would answer the first question."""

from __future__ import annotations

from torch import Tensor, nn

from hookscope import samples


class DigitReader(nn.Module):
    """Reads digits from a scanned sheet of paper."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: Tensor) -> Tensor:
        """Return ten scores for each scan."""
        # Ink is dark, and the network has learned white digits on black.
        scores: Tensor = self.network(1 - scan)
        return scores
