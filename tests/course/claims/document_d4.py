"""Demonstrations of the claims of document D4: hooks through the source of nn.Module."""

from __future__ import annotations

import torch
from torch import nn

from hookscope import samples
from tests.course.claims import shows


@shows("D4.1")
def leaves_the_code_alone() -> None:
    net = samples.digit_cnn()
    before, forward = {name: value.clone() for name, value in net.state_dict().items()}, net.block1.forward
    with net.block1.register_forward_hook(lambda module, args, output: None):
        net(samples.digit(5))
        assert net.block1.forward == forward  # of the same object, by the same function
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@shows("D4.7")
def variable_is_tensor() -> None:
    from torch.autograd import Variable

    assert type(Variable(torch.FloatTensor([3]), requires_grad=True)) is torch.Tensor
    assert not hasattr(torch.functional, "relu")
    assert hasattr(nn.functional, "relu")
