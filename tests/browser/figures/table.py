"""What a reader does with every figure on a page: rows for the widgets of the package, and those of the course."""

from __future__ import annotations

from playwright.sync_api import Locator

from hookscope_course.figures import registry
from hookscope_course.figures.kit.promises import Controls
from tests.shared.figure_page import FigurePage
from tests.shared.smallest_figure import add_smallest_figure

HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that attacks a page which takes it for more than a text."""


def draw(figures: FigurePage, name: str, *more: str) -> Locator:
    """Draw a figure on an empty page, after it what further cells return, and give its region."""
    figure = FIGURES[name]
    figures.scratch(figure.code, *more)
    return figures.stage(figure.label)


FIGURES: dict[str, Controls] = {
    "LayerPicker": Controls(
        "Layer picker",
        """
from hookscope import samples
from hookscope.widgets import LayerPicker
picker = LayerPicker(samples.digit_cnn(), samples.digit(5))
picker
""",
        ("[role=option] >> nth=5",),
        "picker.layer, picker.channel",
        "block2.conv -1",
        "[role=listbox]",
        ("Home", "ArrowDown", "ArrowDown", "ArrowDown"),
        "block1.relu -1",
        pane=False,
        alone=False,
    ),
    "PatchMap": Controls(
        "Patch map",
        """
import torch
from torch import nn
import hookscope
from hookscope.widgets import PatchMap
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)])
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
net = Words().eval()
ids, others = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 7, 3, 4, 5]])
tokens = ["the", "<img src=x onerror=alert(1)>", "sat", "down", "there"]
vocabulary = ["zero", "the", "cat", "sat", "down", "there", "six", "<b>dog</b>", "eight"]
calls = []
def metric(logits):
    calls.append(1)
    if len(calls) == 21:
        raise KeyboardInterrupt
    return logits[0, -1, 2]
layers, five = ["embed", "blocks.*"], range(5)
options = hookscope.SweepOptions(tokens=tokens)
found = hookscope.sweep(
    net.train(), ids, layers=layers, source=others, positions=five, metric=metric, options=options
)
patches = PatchMap(found, vocabulary=vocabulary, layer="embed", column=1)
patches
""",
        ("[role=gridcell] >> nth=7",),
        "patches.layer, patches.column",
        "blocks.0 2",
        "[role=grid]",
        ("Home", "ArrowDown"),
        "blocks.0 0",
        pane=False,
        alone=False,
    ),
    "TokenPicker": Controls(
        "Token picker",
        """
import torch
from torch import nn
from hookscope.widgets import TokenPicker
torch.manual_seed(0)
words = ["<img src=x onerror=alert(1)>", "cat", "sat", "down", " ", "mat"]
layers = [nn.TransformerEncoderLayer(16, heads, 32, batch_first=True) for heads in (4, 4, 2)]
net = nn.Sequential(nn.Embedding(6, 16), nn.Sequential(*layers), nn.LayerNorm(16), nn.Linear(16, 6))
picker = TokenPicker(net, torch.arange(6)[None], vocabulary=words)
picker
""",
        ("[role=option] >> nth=1",),
        "picker.token, picker.layer",
        "1 1.2",
        ".tk-map",
        ("ArrowUp", "ArrowLeft"),
        "4 1.1",
        pane=False,
        alone=False,
    ),
}
add_smallest_figure()
for _name in registry.FIGURES:
    FIGURES |= registry.load_promises(_name).CONTROLS
