"""What chapter 06 says beyond its cells, run."""

from typing import Any

import torch
from torch import Tensor, nn

from hookscope import capture, samples
from hookscope_course.chapters.ch06_readers import build_untrained, discount_spread


def test_the_negative_values_of_a_conv_outweigh_the_positive_ones(says):
    says(
        "The conv before it also returns negative values, which outweigh the positive values five to one. "
        "With these in the mean, 114 are right.",
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


def take_means(net: nn.Module, images: Tensor) -> dict[str, Tensor]:
    with torch.no_grad(), capture(net, "block*.*") as seen:
        net(images)
    return {name: seen[name].output.mean((2, 3)).double() for name in seen}


def test_a_count_belongs_to_a_layer_and_a_reader(says):
    says(
        "In `block1.relu`, 98 % of the variance within a class follows the ink.",
        "69 digits are right. Without the part that follows the ink, more than 200 are right.",
        "After `block3.relu`, less than 20 % of this variance follows the ink, and 239 digits are right.",
        "From `block1.relu` on, the better reader gets more than 270 of 360 digits right, trained or not.",
        "After `block3.relu`, the trained network is only a few digits ahead of the best untrained one.",
        "With the nearest center, no layer of the ten gets more than 201 right.",
    )
    train, test = samples.digits("train"), samples.digits("test")
    known, labels = train.images[:360], train.labels[:360]
    ink, asked_ink = (images.mean((1, 2, 3))[:, None].double() for images in (known, test.images))

    def center(features: Tensor) -> Tensor:
        return torch.stack([features[labels == digit].mean(0) for digit in range(10)])

    def count(seen: Tensor, new: Tensor) -> int:
        return int((torch.cdist(new, center(seen)).argmin(1) == test.labels).sum())

    def follow_ink(seen: Tensor) -> tuple[float, Tensor]:
        """Return which part of the variance inside the classes follows the ink, and the means per unit of ink."""
        within, of_ink = seen - center(seen)[labels], ink - center(ink)[labels]
        slope = of_ink.T @ within / of_ink.square().sum()
        return 1 - float((within - of_ink @ slope).square().sum() / within.square().sum()), slope

    networks = [samples.digit_cnn(), *map(build_untrained, range(10))]
    pairs = [(take_means(net, known), take_means(net, test.images)) for net in networks]
    (seen, new), *others = pairs
    share, slope = follow_ink(seen["block1.relu"])
    without = count(seen["block1.relu"] - ink @ slope, new["block1.relu"] - asked_ink @ slope)
    assert (round(100 * share), without > 200) == (98, True)
    assert follow_ink(seen["block3.relu"])[0] < 0.2
    later = [name for name in seen if name != "block1.conv"]
    better = [{name: count(*discount_spread(a[name], labels, b[name])) for name in later} for a, b in pairs]
    assert min(min(each.values()) for each in better) > 270
    assert 0 < better[0]["block3.relu"] - max(each["block3.relu"] for each in better[1:]) < 10
    simple = [[count(a[name], b[name]) for name in a] for a, b in others]
    assert max(map(max, simple)) == 201


def test_with_all_values_untrained_networks_add_little(says):
    says(
        "But no layer of it gets more digits right than the pixels, and in nine other untrained networks it was at most"
        " 8 more."
    )
    train, test = samples.digits("train"), samples.digits("test")
    known, labels = train.images[:360], train.labels[:360]

    def count(seen: Tensor, new: Tensor) -> int:
        centers = torch.stack([seen[labels == digit].mean(0) for digit in range(10)]).flatten(1)
        return int((torch.cdist(new.flatten(1), centers).argmin(1) == test.labels).sum())

    pixels, more = count(known, test.images), []
    for net in map(build_untrained, range(10)):
        with torch.no_grad(), capture(net, "block*.*") as seen:
            net(torch.cat([known, test.images]))
        more.append(max(count(*seen[name].output.split(360)) for name in seen) - pixels)
    assert more[0] <= 0
    assert max(more) == 8


def test_three_digits_go_wrong_in_three_ways(says):
    says(
        "The 1 is nearest to the 8s in the pixels, and after each layer.",
        "The first 7 is nearest to the 5s in the pixels.",
        "After `block3.relu` it is nearest to the 7s, and one layer later to the 8s.",
        "The second 7 is nearest to the 7s after each layer of the blocks.",
        "For the better reader of section 2, the 1 is a 1 from `block1.relu` on.",
    )
    train, test, net = samples.digits("train"), samples.digits("test"), samples.digit_cnn()
    known, labels = train.images[:360], train.labels[:360]
    with torch.no_grad():
        reads = net(test.images).argmax(1)
    wrong = (reads != test.labels).nonzero().flatten()
    assert (test.labels[wrong].tolist(), reads[wrong].tolist()) == ([1, 7, 7], [8, 9, 8])

    def find_nearest(seen: Tensor, new: Tensor) -> list[int]:
        centers = torch.stack([seen[labels == digit].mean(0) for digit in range(10)])
        return torch.cdist(new, centers).argmin(1).tolist()

    with torch.no_grad(), capture(net, "block*.*") as kept:
        net(torch.cat([known, test.images[wrong]]))
    maps = {"pixels": torch.cat([known, test.images[wrong]])} | {name: kept[name].output for name in kept}
    nearest = {name: find_nearest(each[:360].flatten(1), each[360:].flatten(1)) for name, each in maps.items()}
    the_1, first, second = zip(*nearest.values(), strict=True)
    assert {*the_1} == {8}
    assert (first[0], *first[-2:]) == (5, 7, 8)
    assert {*second} == {7}
    means = {name: each.mean((2, 3)) for name, each in maps.items()}
    better = {name: find_nearest(*discount_spread(each[:360], labels, each[360:]))[0] for name, each in means.items()}
    assert [name for name in better if better[name] != 1] == ["pixels", "block1.conv"]
