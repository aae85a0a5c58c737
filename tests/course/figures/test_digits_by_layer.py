"""Digits by layer: counts against scikit-learn, pulls against a formula by hand, places on the circle."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from hookscope import census, samples
from hookscope_course.figures.digits_by_layer.figure import DigitsByLayer, class_centers, pull


def how_much(output: Tensor) -> Tensor:
    return output.mean(dim=(2, 3))


def everything(output: Tensor) -> Tensor:
    return output.flatten(1)


@pytest.fixture(scope="module")
def known() -> tuple[Tensor, Tensor]:
    train = samples.digits("train")
    return train.images[:360], train.labels[:360]


@pytest.fixture
def figure(known: tuple[Tensor, Tensor]) -> DigitsByLayer:
    networks = {"trained": samples.digit_cnn(), "untrained": samples.digit_cnn(trained=False)}
    return DigitsByLayer(networks, how_much, known, samples.digits("test"))


@pytest.mark.parametrize("feature", [how_much, everything])
def test_the_counts_are_those_of_another_nearest_centroid(known: tuple[Tensor, Tensor], feature: object) -> None:
    net, (images, labels) = samples.digit_cnn(), samples.digits("test")
    made = DigitsByLayer({"net": net}, feature, known, (images, labels))  # type: ignore[arg-type]
    assert made.names[0] == "pixels"
    assert made.names[1:] == [name for name, _ in net.named_modules() if name.count(".") == 1 and name[:4] != "head"]

    def outputs(given: Tensor, layer: str) -> np.ndarray:
        kept: list[Tensor] = []
        with net.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output)):
            net(given)
        return feature(kept[0].detach()).double().numpy()  # type: ignore[operator, no-any-return]

    for name in ("block1.relu", "block3.relu"):
        centroid = NearestCentroid().fit(outputs(known[0], name), known[1])
        right = int((centroid.predict(outputs(images, name)) == labels.numpy()).sum())
        assert made.right["net"][made.names.index(name)] == right
    assert not census(net)


def test_what_chapter_06_says(figure: DigitsByLayer, known: tuple[Tensor, Tensor]) -> None:
    right = {name: dict(zip(figure.names, counts, strict=True)) for name, counts in figure.right.items()}
    assert next(name for name, many in right["trained"].items() if many > 180) == "block3.relu"
    assert max(right["untrained"].values()) <= 180
    assert right["trained"]["pixels"] == 48
    assert right["trained"]["block2.pool"] < 120, "fewer than a third"
    whole = DigitsByLayer(
        {"trained": samples.digit_cnn(), "untrained": samples.digit_cnn(trained=False)},
        everything,
        known,
        samples.digits("test"),
    )
    assert whole.right["trained"][0] == whole.right["untrained"][0] == 326
    assert whole.right["trained"][whole.names.index("block3.relu")] == 326 + 19
    assert max(whole.right["untrained"]) == 326, "an untrained network adds nothing"
    figure.digit, figure.depth = 8, figure.names.index("block3.relu")
    assert figure.sentence.endswith("Of the 28 eights, 14 are.")


@pytest.mark.slow
def test_what_chapter_06_says_of_other_random_weights(known: tuple[Tensor, Tensor]) -> None:
    last: dict[str, list[int]] = {"how_much": [], "everything": []}
    for seed in range(1, 6):
        torch.manual_seed(seed)
        net = samples.DigitCNN()
        for feature in (how_much, everything):
            made = DigitsByLayer({"net": net}, feature, known, samples.digits("test"), "block3.pool")
            last[feature.__name__].append(made.right["net"][-1])
    assert [min(last["how_much"]), max(last["how_much"])] == [149, 201]
    assert [min(last["everything"]), max(last["everything"])] == [320, 334]


def test_the_pull_by_hand() -> None:
    labels = torch.arange(10).repeat_interleave(2)
    known = torch.stack([10.0 * labels, (-1.0) ** torch.arange(20)], 1)  # centers at 0, 10, …, each 1 from its two
    centers = class_centers(known, labels)
    assert centers.tolist() == [[10.0 * digit, 0] for digit in range(10)]
    pulled = pull(known, labels, torch.tensor([[20.0, 0], [45, 0], [45, 3]]))
    assert pulled.sum(1).tolist() == pytest.approx([1] * 3)
    assert pulled[0].argmax() == 2
    for row in pulled[1:]:
        assert row[4].item() == row[5].item() == pytest.approx(0.5, abs=1e-6), "halfway"


def test_where_centers_tell_nothing_the_digits_lie_in_the_middle() -> None:
    generator = torch.Generator().manual_seed(0)
    noise, labels = torch.rand(400, 6, generator=generator), torch.arange(10).repeat(40)
    assert pull(noise, labels, torch.rand(50, 6, generator=generator)).max() < 0.2
    same = pull(torch.ones(20, 3), torch.arange(10).repeat(2), torch.ones(4, 3))
    assert torch.allclose(same, torch.full((4, 10), 0.1).double())


def test_what_the_page_gets_is_what_python_has(figure: DigitsByLayer) -> None:
    labels = samples.digits("test").labels
    figure.network, figure.depth = "untrained", 4
    packed = base64.b64decode(figure._data["places"]["untrained"][4])
    places = np.frombuffer(packed, "<i2").reshape(-1, 2) / 1000
    angles = 2 * math.pi * np.arange(10) / 10
    anchors = np.stack([np.sin(angles), -np.cos(angles)], 1)
    assert np.abs(places - figure.pulls.numpy() @ anchors).max() < 0.00051
    reads = figure.pulls.argmax(1)
    assert figure._data["reads"]["untrained"][4] == "".join(map(str, reads.tolist()))
    assert f"of the untrained network, {int((reads == labels).sum())} of 360" in figure.sentence
    assert figure.numbers()[4]["untrained"] == figure.right["untrained"][4]
    figure.depth = 0
    assert figure.sentence.startswith("In the pixels, before any layer, 48 of 360")
    assert figure.sentence in figure.alt


def test_networks_that_do_not_fit_are_refused(known: tuple[Tensor, Tensor]) -> None:
    net = samples.digit_cnn()
    other = nn.Sequential()
    other.block1 = nn.Sequential(nn.Conv2d(1, 2, 3))
    with pytest.raises(ValueError, match="Pass networks that are alike"):
        DigitsByLayer({"net": net, "other": other}, how_much, known, samples.digits("test"))
    assert not census(net)
