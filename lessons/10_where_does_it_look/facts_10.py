"""What chapter 10 says beyond its cells, run."""

from contextlib import ExitStack
from copy import deepcopy

import pytest
import torch
from torch import nn

from hookscope import samples


def test_a_correlation_does_not_see_brightness_and_contrast(says):
    says(
        "A correlation of 1 means that the two images differ at most in brightness and contrast.",
        "A correlation of 0 means that they do not become bright and dark together.",
    )
    image = torch.linspace(-1, 1, 49)
    assert torch.corrcoef(torch.stack([image, 0.1 * image + 0.5]))[0, 1].item() == pytest.approx(1)
    assert torch.corrcoef(torch.stack([image, image**2]))[0, 1].item() == pytest.approx(0, abs=1e-6)


def test_guided_images_are_more_like_the_digits_with_random_weights(says):
    says('In the row "random", the 9 and the 4 look even more like digits than in the row "trained".')
    net, images = samples.digit_cnn(), samples.digits("test").images[:3]
    classes = net(images).argmax(dim=1)
    torch.manual_seed(0)
    guessing = deepcopy(net)
    guessing.head.linear.reset_parameters()

    def likeness(model: nn.Module) -> list[float]:
        x = images.clone().requires_grad_()
        with ExitStack() as stack:
            for relu in (module for module in model.modules() if isinstance(module, nn.ReLU)):
                stack.enter_context(relu.register_full_backward_hook(lambda _, grad, __: (grad[0].clamp(min=0),)))
            (grad,) = torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)
        pairs = zip(grad.abs().flatten(1), images.flatten(1), strict=True)
        return [torch.corrcoef(torch.stack(pair))[0, 1].item() for pair in pairs]

    for digit, trained, random in zip(classes.tolist(), likeness(net), likeness(guessing), strict=True):
        assert random > trained + 0.1 or digit == 7
    assert classes.tolist() == [7, 9, 4]


def test_the_step_to_any_other_digit_is_longer(says):
    says("The other digits need longer steps, from 4 % of the norm for a 0 to 13 % for a 6.")
    net = samples.digit_cnn()
    output = net.block3(net.block2(net.block1(samples.digit(1)))).detach().requires_grad_()
    shares = list[float]()
    for digit in range(10):
        loss = nn.functional.cross_entropy(net.head(output), torch.tensor([digit]))
        (grad,) = torch.autograd.grad(loss, output)
        step, share = output.norm() * grad / grad.norm(), 0.0
        while net.head(output - share * step).argmax() != digit:
            share += 0.001
        shares.append(round(100 * share))
    assert shares[8] == shares[1] == 0
    assert shares[0] == sorted(shares)[2] == 4
    assert shares[6] == max(shares) == 13
