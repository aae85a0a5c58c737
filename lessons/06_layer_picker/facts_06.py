"""What chapter 06 says beyond its cells, run."""

from typing import Any

import torch
from torch import Tensor

from hookscope import capture, samples


def test_the_negative_values_of_a_conv_outweigh_the_positive_ones(says):
    says(
        "In `block3.conv` the negative values outweigh the positive values five to one, and 114 digits are right.",
        "Now 239 digits are right.",
    )
    train, test, net = samples.digits("train"), samples.digits("test"), samples.digit_cnn()
    known, labels = train.images[:360], train.labels[:360]

    def maps(images: Tensor) -> Tensor:
        with torch.no_grad(), capture(net, "block3.conv") as seen:
            net(images)
        return seen["block3.conv"].output

    before, asked = maps(known), maps(test.images)
    positive, negative = asked.clamp(min=0).sum().item(), -asked.clamp(max=0).sum().item()
    assert round(negative / positive) == 5

    def count(part: Any) -> int:
        centers = torch.stack([part(before)[labels == digit].mean((0, 2, 3)) for digit in range(10)])
        return int((torch.cdist(part(asked).mean((2, 3)), centers).argmin(1) == test.labels).sum())

    assert (count(lambda o: o), count(lambda o: o.clamp(max=0)), count(torch.relu)) == (114, 114, 239)
