"""What chapter 12 says beyond its cells, run."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hookscope import samples
from hookscope_course.chapters.ch12_projects import run_blocks, train_epoch


def train_head(seed: int, inputs: Tensor, rates: list[float]) -> Tensor:
    """Return whether each unit was dead, of shape (epochs, layers, units)."""
    torch.manual_seed(seed)
    first, second, last = nn.Linear(1568, 64), nn.Linear(64, 64), nn.Linear(64, 10)
    mlp = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last).double()
    dead = torch.ones(len(rates), 2, 64, dtype=torch.bool)
    for silent, lr in zip(dead, rates, strict=True):

        def note(module: nn.Module, args: Any, output: Tensor, silent: Tensor = silent) -> None:
            silent[0 if module is mlp[2] else 1] &= output.amax(dim=0) == 0

        with mlp[2].register_forward_hook(note), mlp[4].register_forward_hook(note):
            train_epoch(mlp, inputs, samples.digits("train").labels, lr)
    return dead


@pytest.mark.slow
def test_one_bad_epoch_kills_layer_1_for_good_with_each_of_ten_seeds(says):
    """Units of layer 2 wake up in each of ten runs, and no unit of layer 1."""
    says(
        "In layer 1 the inputs stay the same, too, so the unit stays dead.",
        "In layer 2 the input changes while layer 1 learns, so a unit can wake up.",
        "After five good epochs, most of layer 1 is still dead.",
        "We tried ten seeds, and all of this held for each of them.",
    )
    inputs = run_blocks(samples.digit_cnn(), samples.digits("train").images)
    for seed in range(10):
        dead, fresh = (train_head(seed, inputs, [lr] + [0.2] * 5) for lr in (1.0, 0.2))
        woke = (dead[:-1] & ~dead[1:]).sum(dim=(0, 2))
        assert woke[0] == 0 < woke[1]
        assert fresh[-1, 0].sum() < 15 < 40 < dead[-1, 0].sum()


def test_saved_tensors_are_freed_one_by_one_and_share_blocks(says):
    says(
        "Each one is freed when the backward pass has used it.",
        "keeps its own input, which is the same tensor. They share one block,",
        "The largest tensors are kept by two layers,",
        "the result would keep itself alive.",
        "only the inner one runs.",
        "`torch.func.grad` refuses them with a RuntimeError.",
    )
    packs, counts, outer, blocks = list[Any](), list[int](), list[Any](), dict[int, list[int]]()
    ways: list[tuple[Any, bool]] = [(lambda tensor: tensor, True), (torch.Tensor.detach, False)]

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        packs.append(weakref.ref(packed := partial(torch.Tensor.detach, tensor)))
        return packed

    def note(tensor: Tensor) -> Tensor:
        blocks.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor.nbytes)
        return tensor.detach()

    def count(grad: Tensor) -> None:
        counts.append(sum(each() is not None for each in packs))

    h: Any = torch.ones(1, 2, requires_grad=True)
    with saved_tensors_hooks(pack, lambda packed: packed()):
        for _ in range(4):
            h = nn.Linear(2, 2)(h).sin()
            h.register_hook(count)
    h.sum().backward()
    assert counts == [12, 9, 6, 3], "they are freed step by step, not when the pass is over"
    with saved_tensors_hooks(note, lambda tensor: tensor):
        samples.digit_cnn()(samples.digits("test").images[:4].clone())
    assert [len(each) for each in sorted(blocks.values(), key=max)][-4:] == [2, 1, 2, 2]
    for kept, lives in ways:
        with saved_tensors_hooks(outer.append, lambda tensor: tensor), saved_tensors_hooks(kept, lambda tensor: tensor):
            ref = weakref.ref(torch.ones(2, requires_grad=True).exp())
            with pytest.raises(RuntimeError, match="saved tensor hooks"):
                torch.func.grad(torch.exp)(torch.tensor(1.0))
        gc.collect()
        assert (ref() is not None, outer) == (lives, [])


@torch.no_grad()
def test_a_push_turns_what_is_near_the_border(says):
    says(
        "and hardly any other scan is that near.",
        "in the test data, it turns every 8 into a 1.",
    )
    net, train, test, one = samples.digit_cnn(), samples.digits("train"), samples.digits("test"), samples.digit(1)
    of_train, of_test, of_one = (net.block3(net.block2(net.block1(each))) for each in (train.images, test.images, one))
    means = [of_train[train.labels == digit].mean(0) for digit in range(10)]
    to_1 = means[1] - means[8]
    before, after = net.head(of_test).argmax(1), net.head(of_test + 0.04 * to_1).argmax(1)
    assert (net.head(of_test[(before == 8) | (test.labels == 8)] + to_1).argmax(1) == 1).all()
    assert (net.head(of_train[train.labels == 8] + to_1).argmax(1) != 1).sum() == 2, "not of every 8 in the train data"
    top, gap = net(test.images).topk(2).values, net(one)[0, 8] - net(one)[0, 1]
    assert (top[:, 0] - top[:, 1] < gap - 1e-3).sum() == 3, "three are even nearer to some border"
    assert ((after != before).sum(), net.head(of_one + 0.04 * to_1).argmax()) == (1, 1), "only the 1 turns"


@torch.no_grad()
def test_a_random_push_turns_at_most_one_scan(says):
    """The push toward the 8 turns half of the 3s at strength 0.6, and 200 random pushes turn one at most."""
    says(
        "At strength 0.6, more than half of the scans have turned.",
        "We tried 200 random pushes, and none turned more than one scan into an 8.",
    )
    net, train, test = samples.digit_cnn(), samples.digits("train"), samples.digits("test")
    of_train, of_test = (net.block3(net.block2(net.block1(each.images))) for each in (train, test))
    push = of_train[train.labels == 8].mean(dim=0) - of_train[train.labels == 3].mean(dim=0)
    threes = of_test[test.labels == 3][:24]
    assert [int((net.head(threes + strength * push).argmax(dim=1) == 8).sum()) for strength in (0.55, 0.6)] == [11, 13]
    torch.manual_seed(0)
    for _ in range(200):
        random = torch.randn_like(push)
        logits = net.head(threes + random * push.norm() / random.norm())
        others = logits.clone()
        others[:, 8] = -torch.inf
        lead = logits[:, 8] - others.amax(dim=1)
        assert lead.sort().values[-2] < -0.5, "no second scan is near"


@torch.no_grad()
def test_the_weakest_repair_of_the_7_changes_few_other_scans(says):
    """In steps of 0.01, it is one scan at block1, none at block2 and two at block3."""
    says("In steps of 0.01, the weakest repair of the 7 changes one other test scan at `block1`, none at")
    net, train, test = samples.digit_cnn(), samples.digits("train"), samples.digits("test")
    before = net(test.images).argmax(dim=1)
    (at,) = ((test.labels == 7) & (before == 8)).nonzero()[0].tolist()
    changed, outputs, rest = [], [train.images, test.images], [*net.children()]
    while rest[1:]:
        layer = rest.pop(0)
        outputs = [layer(each) for each in outputs]
        push = outputs[0][train.labels == 7].mean(dim=0) - outputs[0][train.labels == 8].mean(dim=0)
        repaired = (
            step / 100
            for step in range(101)
            if nn.Sequential(*rest)(outputs[1][at, None] + step / 100 * push).argmax() == 7
        )
        now = nn.Sequential(*rest)(outputs[1] + next(repaired) * push).argmax(dim=1)
        changed.append(int((now != before).sum()) - 1)
    assert changed == [1, 0, 2]
