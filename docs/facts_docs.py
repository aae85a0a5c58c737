"""What the pages say beyond their code, run."""

from pathlib import Path
from warnings import catch_warnings, simplefilter

import torch
from torch import nn

from hookscope import capture, record, samples


def test_results_with_hooks_are_the_same_but_for_these(says):
    says(
        "a sample that is all padding gets numbers instead of NaN.",
        "If you pass the same tensor twice, a layer can no longer tell that it is the same.",
        "An input that the layer does not use gets a gradient of zeros instead of `None`.",
    )
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    padded, x = torch.tensor([[False] * 6, [True] * 6]), torch.randn(2, 6, 32)
    with torch.no_grad(), catch_warnings():
        simplefilter("ignore")
        assert encoder(x, src_key_padding_mask=padded)[1].isnan().all()
        with capture(encoder):
            assert not encoder(x, src_key_padding_mask=padded)[1].isnan().any()

    class Same(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return 2 * q if q is k else 3 * q

    class First(nn.Module):
        def forward(self, a: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return 2 * a

    same, first, one = Same(), First(), torch.ones(1, requires_grad=True)
    unused, watched = (torch.ones(1, requires_grad=True) for _ in range(2))
    assert same(one, one) == 2
    first(one, unused).backward()
    assert unused.grad is None
    with record(nn.ModuleList([same, first])):
        assert same(one, one) == 3
        first(one, watched).backward()
    assert watched.grad == 0
    with record(same, kinds=("forward_pre", "forward")):
        assert same(one, one) == 2


def test_three_trained_networks_come_with_it(says):
    says("three small trained networks come with it.")
    weights = [
        path for path in Path(samples.__file__).parent.glob("*.safetensors") if path.stem.endswith(("cnn", "lm"))
    ]
    assert len(weights) == 3
