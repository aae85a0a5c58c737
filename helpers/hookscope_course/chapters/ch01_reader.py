"""The colleague's new program of chapter 01: its code on the page would show the mistake."""

from __future__ import annotations

from torch import Tensor, nn

from hookscope import samples


class TwoWayReader(nn.Module):
    """Reads digits, whether they are dark on light or light on dark."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: Tensor) -> Tensor:
        """Return ten scores for each scan."""
        if scan.mean() > 0.5:  # mostly light, so the ink is dark
            scan = 1 - scan
        return self.network.forward(scan)  # not `self.network(scan)`: the mistake that the chapter is about
