"""Where a network looks: each map and each step against plain torch, on digits and on photographs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import samples
from hookscope_course.figures import WhereItLooks

NAMES = ("barbell", "drumstick", "jersey", "space shuttle")


@pytest.fixture
def figure() -> WhereItLooks:
    return WhereItLooks(samples.digit_cnn(), samples.digit(1), "block3", most=0.04)


def by_hand(target: int, share: float) -> tuple[Tensor, Tensor]:
    """The map and the probabilities of a digit, without a hook: the parts of the network one after the other."""
    net, one = samples.digit_cnn(), samples.digit(1)
    output = net.block3(net.block2(net.block1(one))).detach().requires_grad_()
    logits = net.head(output)
    (of_logit,) = torch.autograd.grad(logits[0, target], output, retain_graph=True)
    (grad,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([target])), output)
    moved = output - share * output.norm() * grad / grad.norm()
    return (of_logit * output).sum(1)[0].detach(), net.head(moved).softmax(1)[0].detach()


@pytest.mark.parametrize("target", [8, 1, 4])
@pytest.mark.parametrize("step", [0, 1, 2, 5, 20])
def test_a_map_and_a_step_are_those_of_plain_torch(figure: WhereItLooks, target: int, step: int) -> None:
    positions, probabilities = by_hand(target, 0.04 * step / 20)
    figure.target, figure.step = target, step
    assert torch.allclose(figure.positions, positions, atol=1e-4)
    assert torch.allclose(figure.probabilities, probabilities, atol=1e-4)
    assert torch.allclose(torch.tensor(figure._map["cells"]), (positions / figure._reach).flatten(), atol=2e-3)
    assert [row[1] for row in figure._shown["rows"]] == pytest.approx(probabilities.tolist(), abs=1e-4)
    assert figure.problem == ""


def test_a_map_adds_up_to_the_logit_without_its_bias(figure: WhereItLooks) -> None:
    net = samples.digit_cnn()
    for target in (8, 1):
        figure.target = target
        logit = net(samples.digit(1))[0, target] - net.head.linear.bias[target]
        assert figure.positions.sum().item() == pytest.approx(logit.item(), abs=1e-4)


def test_the_code_that_is_shown_is_what_moves_the_output(figure: WhereItLooks) -> None:
    figure.target, figure.step = 1, 5
    net, one = samples.digit_cnn(), samples.digit(1)
    output = net.block3(net.block2(net.block1(one))).detach().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(net.head(output), torch.tensor([1])), output)
    names = {"model": net, "image": one, "grad": grad}
    exec(figure.code, names)
    assert torch.allclose(names["logits"].softmax(1)[0], figure.probabilities, atol=1e-3)


def test_the_eight_turns_into_a_one_and_the_words_say_so(figure: WhereItLooks) -> None:
    assert (figure.read, figure.target) == (8, 8)
    assert figure.sentence == "Nothing has moved: the model reads 8 (65.0 %)."
    figure.target = 1
    figure.step = 1
    assert figure.sentence.endswith("as before.")
    figure.step = 2
    assert figure.read == 1
    assert figure.sentence.startswith("The output of block3 has moved by 0.4 % of its norm: the model reads 1")
    assert figure._shown["turned"]
    assert figure.numbers()[1]["before the step"] == "34.8 %"
    assert figure.alt.count("row") == 1
    assert figure.png.startswith(b"\x89PNG")


@pytest.mark.parametrize("target", [8, 1, 4])
def test_the_frame_is_on_the_highest_position_of_the_map(figure: WhereItLooks, target: int) -> None:
    positions, _ = by_hand(target, 0)
    highest = int(positions.argmax())
    figure.target = target
    assert figure._map["highest"] == highest
    assert figure._shown["words"].endswith(f"adds the most: +{positions.max():.2f}.")
    assert figure.alt.endswith(f"row {highest // 7 + 1} of 7, column {highest % 7 + 1} of 7.")


def test_all_classes_share_one_scale(figure: WhereItLooks) -> None:
    largest = [by_hand(target, 0)[0].abs().max().item() for target in range(10)]
    assert figure._reach == pytest.approx(max(largest), abs=1e-4)


def test_every_digit_is_reached_on_the_slider_of_the_lesson_and_no_random_step_turns_the_one() -> None:
    net, one = samples.digit_cnn(), samples.digit(1)
    figure = WhereItLooks(net, one, "block3", most=0.14)
    for target in range(10):
        figure.target, figure.step = target, 20
        assert figure.read == target
    assert by_hand(1, 0.0041)[1].argmax() == 1
    for target, first in ((0, 0.0415), (6, 0.127)):  # the nearest and the farthest of the other digits
        assert by_hand(target, first + 0.0005)[1].argmax() == target
        assert by_hand(target, first - 0.001)[1].argmax() != target
    output = net.block3(net.block2(net.block1(one))).detach()
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(200, *output.shape[1:], generator=generator)
    steps /= steps.flatten(1).norm(dim=1)[:, None, None, None]
    for share in (0.004, 0.04):
        assert (net.head(output + share * output.norm() * steps).argmax(1) == 8).all()


def test_a_frozen_model_is_left_as_it_was() -> None:
    net = samples.digit_cnn().requires_grad_(False).train()
    figure = WhereItLooks(net, samples.digit(1), "block3", most=0.04)
    figure.target, figure.step = 1, 20
    assert figure.read == 1
    assert net.training
    assert not any(p.requires_grad or p.grad is not None for p in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.skipif(not samples.has_photo_weights(), reason="the weights are not installed")
def test_on_a_photograph_the_shuttle_is_found_and_made() -> None:
    net, astronaut = samples.photo_cnn(), samples.photo("astronaut")
    chosen = [samples.PHOTO_CLASSES.index(name) for name in NAMES]
    figure = WhereItLooks(net, astronaut, "head", names=samples.PHOTO_CLASSES, classes=chosen, most=0.2)
    assert samples.PHOTO_CLASSES[figure.read] == "barbell"
    figure.target = chosen[3]
    assert figure._shown["place"] == "It is in row 2 of 7, column 6 of 7."
    logit = net(astronaut)[0, chosen[3]] - net.classifier.bias[chosen[3]]
    assert figure.positions.sum().item() == pytest.approx(logit.item(), abs=1e-3)
    figure.step = 10
    assert samples.PHOTO_CLASSES[figure.read] == "space shuttle"
    assert figure._image.startswith("data:image/jpeg")
    assert figure._shown["read"] == "space shuttle"


def test_a_class_that_has_no_color_of_its_own_is_drawn_as_nothing() -> None:
    class Blank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).mean((2, 3)))  # type: ignore[no-any-return]

    net = Blank()
    nn.init.zeros_(net.head.weight)
    figure = WhereItLooks(net, torch.rand(1, 1, 6, 6), "conv")
    figure.step = 20
    assert set(figure._map["cells"]) == {0}
    assert not figure.probabilities.isnan().any()


@pytest.mark.skipif(not samples.has_photo_weights(), reason="the weights are not installed")
def test_each_position_of_the_head_sees_the_whole_photograph_and_the_shuttle_is_where_the_map_says() -> None:
    net, astronaut = samples.photo_cnn(), samples.photo("astronaut")
    x, kept = astronaut.clone().requires_grad_(), []
    with net.head.register_forward_hook(lambda module, args, output: kept.append(output)):
        net(x)
    for row, column in ((0, 0), (0, 6), (6, 0), (6, 6), (3, 3)):
        (grad,) = torch.autograd.grad(kept[0][0, :, row, column].sum(), x, retain_graph=True)
        assert (grad.abs().sum((0, 1)) > 0).all()
    shuttle = samples.PHOTO_CLASSES.index("space shuttle")
    covered = astronaut.clone()
    covered[..., 0:112, 160:208] = 0
    assert net(astronaut)[0, shuttle].item() == pytest.approx(0.7, abs=0.05)
    assert net(covered)[0, shuttle].item() == pytest.approx(-0.6, abs=0.05)
