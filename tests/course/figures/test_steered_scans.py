"""The scans that are pushed: each state is that of the network's parts, one after the other, without a hook."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hookscope
from hookscope import samples
from hookscope_course.figures import SteeredScans
from hookscope_course.figures.steered_scans.figure import read_pushed

NET = samples.digit_cnn()
TRAIN, TEST = samples.digits("train"), samples.digits("test")


def block3(images: Tensor) -> Tensor:
    with torch.no_grad():
        return NET.block3(NET.block2(NET.block1(images)))


def push_from(start: int, goal: int) -> Tensor:
    outputs = block3(TRAIN.images)
    return outputs[TRAIN.labels == goal].mean(0) - outputs[TRAIN.labels == start].mean(0)


def read(images: Tensor, added: Tensor) -> list[int]:
    with torch.no_grad():
        return NET.head(block3(images) + added).argmax(1).tolist()


THREES = TEST.images[TEST.labels == 3][:24]
TO_8 = push_from(3, 8)
RANDOM = torch.randn(TO_8.shape, generator=torch.Generator().manual_seed(0))
RANDOM *= TO_8.norm() / RANDOM.norm()


@pytest.fixture(scope="module")
def scans() -> SteeredScans:
    return SteeredScans(NET, "block3", {"toward 8": TO_8, "random": RANDOM}, THREES, 8)


@pytest.mark.parametrize(("push", "tensor"), [("toward 8", TO_8), ("random", RANDOM)])
@pytest.mark.parametrize("step", [0, 5, 10, 20])
def test_each_state_is_that_of_the_parts(scans: SteeredScans, push: str, tensor: Tensor, step: int) -> None:
    scans.push, scans.step = push, step
    assert scans.strength == step / 20
    assert scans.read == read(THREES, step / 20 * tensor)
    assert scans.count(push, scans.strength) == scans.read.count(8)
    counted = f"{max(scans.read, key=scans.read.count)} ({max(map(scans.read.count, scans.read))})"
    assert counted in scans.alt


@pytest.mark.slow
def test_what_chapter_12_says_of_random_pushes_and_of_the_whole_push() -> None:
    assert read(THREES, TO_8).count(8) == 24
    many = torch.randn(200, *TO_8.shape, generator=torch.Generator().manual_seed(1))
    turned = [read(THREES, each * TO_8.norm() / each.norm()).count(8) for each in many]
    assert max(turned) == 1
    assert turned.count(0) == 166


def test_what_chapter_12_says_of_the_repair() -> None:
    to_1, before = push_from(8, 1), read(TEST.images, 0 * TO_8)
    assert read(samples.digit(1), 0.03 * to_1) == [8]
    assert read(samples.digit(1), 0.04 * to_1) == [1]

    def changed(strength: float) -> list[int]:
        after = read(TEST.images, strength * to_1)
        return [at for at in range(len(before)) if before[at] != after[at]]

    assert len(changed(0.04)) == 1, "the 1 alone"
    assert torch.equal(TEST.images[changed(0.04)], samples.digit(1))
    assert len(changed(1)) == 126
    eights = TEST.images[TEST.labels == 8]
    assert {*read(eights, to_1)} == {1}


def test_the_numbers_are_every_fourth_strength(scans: SteeredScans) -> None:
    rows = list(scans.numbers())
    assert [row["strength"] for row in rows] == 2 * ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert rows[0]["read as"].startswith("3 (")


def test_what_is_repaired_is_told_apart_from_what_is_changed() -> None:
    scans = torch.cat([samples.digit(1), TEST.images[TEST.labels == 8][:5]])
    figure = SteeredScans(NET, "block3", {"toward 1": push_from(8, 1)}, scans, 1, strengths=[0, 0.04, 1], marked=[0])
    told = ["Repaired: 0 of 1. Changed: 0 of the other 5.", "Repaired: 1 of 1. Changed: 0 of the other 5."]
    told.append("Repaired: 1 of 1. Changed: 5 of the other 5.")
    for step, words in enumerate(told):
        figure.step = step
        assert words in figure.alt
    plain = SteeredScans(NET, "block3", {"toward 1": push_from(8, 1)}, scans, 1)
    assert "Repaired" not in plain.alt


@pytest.mark.slow
def test_what_exercise_12_3_says_of_the_repair_of_the_7() -> None:
    train, reads = samples.digits("train"), NET(TEST.images).argmax(1)
    [seven] = ((TEST.labels == 7) & (reads == 8)).nonzero().flatten().tolist()
    cost = []
    for name in ("block1", "block2", "block3"):
        with torch.no_grad(), hookscope.capture(NET, name) as seen:
            NET(train.images)
        output = seen[name].output
        push = output[train.labels == 7].mean(0) - output[train.labels == 8].mean(0)
        for step in range(101):
            now = torch.tensor(read_pushed(NET, name, push, TEST.images, step / 100))
            if now[seven] == 7:
                break
        cost.append(int((now != reads).sum()) - 1)
    assert cost == [1, 0, 2]
