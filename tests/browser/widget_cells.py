"""A notebook with every widget of hookscope, for the tests that all of them go through."""

ALL_WIDGETS = (
    """
import torch
from torch import nn
import hookscope
from hookscope import samples; from hookscope.widgets import *; from hookscope_course.figures import *
net, five = samples.digit_cnn(), samples.digit(5)
""".strip(),
    "picker = LayerPicker(net, five)\npicker",
    *("playing = GradientPlayground()\nplaying", "explorer = GradInputExplorer()\nexplorer"),
    """
torch.manual_seed(0)
two = nn.Sequential(*[nn.TransformerEncoderLayer(8, heads, 16, batch_first=True) for heads in (4, 2)]).eval()
steps, last = torch.ones(1, 3, 8).cumsum(1), lambda output: output[0, -1, 0]
said = ["the", "cat", "sat"]
found = hookscope.sweep(
    two, steps, layers="*", source=steps.flip(1), positions=range(3), metric=last,
    options=hookscope.SweepOptions(tokens=said, progress=False),
)
patches = PatchMap(found)
patches
""".strip(),
    """
reader = nn.Sequential(nn.Embedding(7, 8), two, nn.LayerNorm(8), nn.Linear(8, 7))
reads = TokenPicker(reader, torch.tensor([[0, 1, 2, 3, 0, 5]]), vocabulary="the cat sat on a mat .".split())
reads
""".strip(),
)
"""The cells of a notebook with all widgets: imports, then one for each."""
