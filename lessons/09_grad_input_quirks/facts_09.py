"""What chapter 09 says beyond its cells, run."""

import pytest
import torch
from torch import Tensor, nn


def test_a_layer_gets_a_view_of_an_input_that_requires_grad(says):
    says("if the input requires grad, the layer gets a view of it")

    def run(requires_grad: bool) -> None:
        relu = nn.ReLU(inplace=True)
        relu.register_full_backward_hook(lambda *_: None)
        relu(2 * torch.ones(2, requires_grad=requires_grad))

    run(False)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        run(True)


def test_the_last_step_with_rows_has_a_bias_or_not(says):
    says("With rows and a bias, the last step of a Linear layer is `AddmmBackward0`.")
    last = [nn.Linear(4, 5, bias=bias)(torch.ones(3, 4)).grad_fn for bias in (True, False)]
    assert [node.name() for node in last if node] == ["AddmmBackward0", "MmBackward0"]


def test_max_pooling_picks_one_input_and_mean_pooling_none(says):
    says("This pooling layer passes each gradient on to one of four inputs")
    x = torch.rand(1, 1, 4, 4, requires_grad=True)
    for pool, nonzero in ((nn.MaxPool2d(2), 4), (nn.AvgPool2d(2), 16)):
        (grad,) = torch.autograd.grad(pool(x).sum(), x)
        assert int((grad != 0).sum()) == nonzero


def test_of_four_zeros_the_first_is_picked(says):
    says("torch takes the first input, at the top left")
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(nn.MaxPool2d(2)(x).sum(), x)
    assert grad.flatten().tolist() == [1, 0, 0, 0]


def test_the_node_of_a_convolution_has_no_gradient_of_an_image(says):
    says("the first gradient is therefore `None`")
    passed = list[list[Tensor | None]]()
    made = nn.Conv2d(3, 4, 3)(torch.rand(1, 3, 8, 8))
    assert made.grad_fn
    with made.grad_fn.register_hook(lambda grad_inputs, grad_outputs: passed.append([*grad_inputs])):
        made.sum().backward()
    ((image, weight, bias),) = passed
    assert image is None
    assert weight is not None
    assert bias is not None
    assert (weight.shape, bias.shape) == ((4, 3, 3, 3), (4,))
