"""What chapter 10 says beyond its cells, run."""

from contextlib import ExitStack
from copy import deepcopy

import pytest
import torch
from torch import nn

from hookscope import samples
from hookscope_course.figures.chooser.figure import read_rows


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


def test_the_reddest_patches_do_not_say_8_and_two_at_the_end_of_the_stroke_do(says):
    says(
        "There is little ink in the five patches, and the network still reads an 8 without them.",
        "Without either of two patches there, the network reads a 1.",
        "In the map, one of the two is red and the other is blue.",
        "A position of `block3` is computed from more pixels than its patch.",
    )
    net, one = samples.digit_cnn(), samples.digit(1)
    kept = list[torch.Tensor]()
    with net.block3.register_forward_hook(lambda module, args, output: kept.append(output)):
        logits = net(one)[0]
    (grad,) = torch.autograd.grad(logits[8] - logits[1], kept[0])
    versus = (grad * kept[0].detach()).sum(dim=1)[0]

    def without(cells: list[tuple[int, int]]) -> torch.Tensor:
        image = one.clone()
        for row, column in cells:
            image[..., 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
        return image

    cells = [(row, column) for row in range(7) for column in range(7)]
    reddest = [cell for cell in cells if versus[cell] > 1]
    assert len(reddest) == 5
    assert (one - without(reddest)).sum() < 0.03 * one.sum()
    assert net(without(reddest)).argmax() == 8
    turns = [cell for cell in cells if net(without([cell])).argmax() == 1]
    assert turns == [(1, 2), (1, 3)], "the upper end of the stroke"
    assert versus[1, 2] > 0.5
    assert versus[1, 3] < -0.3
    x = torch.rand(1, 1, 28, 28, requires_grad=True)
    kept.clear()
    with net.block3.register_forward_hook(lambda module, args, output: kept.append(output)):
        net(x)
    (grad,) = torch.autograd.grad(kept[0][0, :, 3, 3].sum(), x)
    rows = grad[0, 0].any(dim=1).nonzero().flatten()
    assert rows.max() - rows.min() > 4


def test_a_frozen_network_needs_an_output_that_requires_grad(says):
    says(
        "If no parameter and no input requires grad, autograd records nothing",
        "autograd then records each step after `block3`. The parameters stay frozen.",
    )
    frozen, kept = samples.digit_cnn().requires_grad_(False), list[torch.Tensor]()
    assert not frozen(samples.digit(1)).requires_grad
    with frozen.block3.register_forward_hook(lambda module, args, output: kept.append(output.requires_grad_())):
        logits = frozen(samples.digit(1))
    assert torch.autograd.grad(logits[0, 8], kept[0])[0].any()
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize("frozen", [False, True])
def test_the_lines_to_copy_make_the_grad_cam_of_the_details(says, frozen):
    says(
        "with the mean, the map of the 5 that `samples.digit(5)` returns adds up to −2.9, while its logit is 13.5.",
        "replaces the gradient of each channel by its mean over the positions, and then drops what is negative.",
    )
    (row,) = (row for row in read_rows() if row["want"] == "Make a Grad-CAM of a frozen network")
    net, x = samples.digit_cnn().requires_grad_(not frozen), samples.digit(5)
    copied = {"torch": torch, "model": net, "layer": net.block3, "x": x}
    lines = row["lines"].replace("[:, 0]", "[:, 5]").replace("class 0", "class 5")
    exec(lines, copied)
    # The same without hooks: the network in two parts.
    output = net.block3(net.block2(net.block1(x))).detach().requires_grad_()
    logit = net.head(output)[0, 5]
    (grad,) = torch.autograd.grad(logit, output)
    summed = (grad.mean((2, 3))[:, :, None, None] * output).sum(1, keepdim=True)
    assert (round(logit.item(), 1), round(summed.sum().item(), 1)) == (13.5, -2.9)
    wanted = nn.functional.interpolate(summed.clamp(min=0), (28, 28), mode="bilinear")
    torch.testing.assert_close(copied["cam"], wanted.detach())
    assert copied["cam"].shape == x.shape
    assert not net.block3._forward_hooks
