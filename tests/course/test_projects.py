"""What chapter 12 draws, and what it says in numbers, held against plain torch."""

from __future__ import annotations

import statistics
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hookscope import samples
from hookscope_course.practice import ____
from hookscope_course.projects import (
    draw_blocks,
    draw_dead_units,
    half_once,
    show_channels,
    show_ledger,
    show_push,
    train_epoch,
)
from tests.course.test_hundred_more_sentences import says
from tests.course.test_hundred_sentences import text_of


def test_dead_units_are_counted_by_epoch() -> None:
    epochs = ([True, False, False], [True, True, False], [False, False, False])
    history = [{"1": torch.tensor(fired)} for fired in epochs]
    page = draw_dead_units(history)
    assert page.rows == [
        {"layer": "1", "epoch": 1, "dead": 2, "woke up": 0},
        {"layer": "1", "epoch": 2, "dead": 1, "woke up": 1},
        {"layer": "1", "epoch": 3, "dead": 3, "woke up": 0},
    ]


def test_blocks_add_up() -> None:
    # Two operations keep the tensor at address 1, and each gets a copy with half the bits; the one at 2 stays as it is.
    plain = [(2, 2_000_000), (1, 8_000_000), (1, 8_000_000)]
    page = draw_blocks({"float32": plain, "bfloat16": [(2, 2_000_000), (3, 4_000_000), (4, 4_000_000)]})
    assert [(row["kept as"], row["tensor"], row["bytes"]) for row in page.rows] == [
        ("float32", "A", 8_000_000),
        ("float32", "B", 2_000_000),
        ("bfloat16", "A", 4_000_000),
        ("bfloat16", "A", 4_000_000),
        ("bfloat16", "B", 2_000_000),
    ]
    assert "bfloat16: 3 blocks, 10.0 MB" in page.alt


@contextmanager
def fired_of(model: nn.Module) -> Any:
    yield {"relu": torch.tensor([True, False])}


@contextmanager
def rows_of(model: nn.Module) -> Any:
    yield [{"layer": "conv", "bytes": 12}]


@contextmanager
def pushed(model: nn.Module, layer: str, images: Tensor, labels: Tensor, start: int, goal: int, strength: float) -> Any:
    with model.get_submodule(layer).register_forward_hook(lambda module, args, output: output + strength):
        yield


def blank(*args: Any) -> Any:
    return ____


@pytest.mark.parametrize(
    ("show", "tool", "said"),
    [
        (show_channels, fired_of, "Dead channels (black)"),
        (show_ledger, rows_of, "Bytes that each call returned"),
        (show_push, pushed, "scans. With 0 times the push 'toward 7'"),
    ],
)
def test_a_tool_with_a_blank_has_no_picture_yet(
    show: Any, tool: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(tool)
    assert said in capsys.readouterr().out
    show(blank)
    assert "Your picture appears here" in capsys.readouterr().out


def test_the_network_with_an_accident_has_a_dead_layer() -> None:
    from hookscope_course.accidents import patient

    fired: list[Tensor] = []
    net = patient()
    net.get_submodule("block2.relu").register_forward_hook(lambda module, args, output: fired.append(output > 0))
    net(samples.digits("test").images)
    assert not fired[0].any()


def test_half_once_makes_one_copy_for_each_tensor_and_version() -> None:
    pack, unpack = half_once(skip=lambda tensor: False)
    tensor, integers = torch.randn(4, 3), torch.arange(3)
    first = pack(tensor)
    assert first.dtype == torch.bfloat16
    assert pack(tensor.detach()) is first, "another Python object on the same memory"
    assert pack(tensor[1:]) is not first, "a view of other values"
    assert pack(tensor.t()) is not first
    assert torch.equal(unpack(first), tensor.bfloat16().float())
    tensor.mul_(2)
    assert torch.equal(pack(tensor), tensor.bfloat16()), "the memory is the same, its values are not"
    assert pack(integers).data_ptr() == integers.data_ptr()
    assert half_once(skip=lambda tensor: True)[0](tensor).dtype == torch.float32


def test_half_once_does_not_mistake_a_tensor_for_a_freed_one() -> None:
    pack, _ = half_once(skip=lambda tensor: False)
    kept, addresses = [], set[int]()
    for value in range(50):
        tensor = torch.full((1000,), float(value))
        addresses.add(tensor.data_ptr())
        kept.append(pack(tensor))
        del tensor
    assert len(addresses) < 50, "memory was used again, or this tests nothing"
    assert [copy[0].item() for copy in kept] == [float(value) for value in range(50)]


def test_half_once_keeps_nothing_alive() -> None:
    pack, _ = half_once(skip=lambda tensor: False)
    tensor = torch.ones(3)
    copy = weakref.ref(pack(tensor))
    assert copy() is None, "only autograd keeps what was packed"


def train_on_digits(seed: int, rates: list[float]) -> tuple[Tensor, int]:
    """Return whether each unit was dead, of shape (epochs, layers, units), and how many test scans are right."""
    torch.manual_seed(seed)
    first, second, head = nn.Linear(784, 64), nn.Linear(64, 64), nn.Linear(64, 10)
    mlp = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), head).double()
    dead = torch.ones(len(rates), 2, 64, dtype=torch.bool)
    for silent, lr in zip(dead, rates, strict=True):

        def note(module: nn.Module, args: Any, output: Tensor, silent: Tensor = silent) -> None:
            silent[0 if module is mlp[2] else 1] &= output.amax(dim=0) == 0

        with mlp[2].register_forward_hook(note), mlp[4].register_forward_hook(note):
            train_epoch(mlp, lr)
    test = samples.digits("test")
    return dead, int((mlp(test.images.double()).argmax(dim=1) == test.labels).sum())


@pytest.mark.slow
def test_one_bad_epoch_kills_layer_1_for_good_with_each_of_ten_seeds() -> None:
    """Units of layer 2 wake up in each of ten runs, and no unit of layer 1."""
    says(
        "12",
        "In layer 1 the images stay the same, too, so the unit stays dead. In layer 2 the input changes while layer 1 "
        "learns, and some units wake up. Five good epochs do not make up for the bad one, because most of layer 1 "
        "stays dead. We tried ten seeds, and all of this held for each of them.",
    )
    for seed in range(10):
        dead, right = train_on_digits(seed, [1.0] + [0.2] * 5)
        fresh, right_of_fresh = train_on_digits(seed, [0.2] * 6)
        woke = (dead[:-1] & ~dead[1:]).sum(dim=(0, 2))
        assert woke[0] == 0 < woke[1]
        assert fresh[-1, 0].sum() < 15 < 40 < dead[-1, 0].sum()
        assert right < right_of_fresh - 20


@torch.no_grad()
def test_a_random_push_turns_at_most_one_scan() -> None:
    """The push toward the 8 turns half of the 3s at strength 0.6, and 200 random pushes turn one at most."""
    says(
        "12",
        "At strength 0.6, more than half of the scans have turned. … We tried 200 random pushes, and none turned more "
        "than one scan into an 8.",
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
def test_the_weakest_repair_of_the_7_changes_few_other_scans() -> None:
    """In steps of 0.01, it is one scan at block1, none at block2 and two at block3."""
    why = "In steps of 0.01, the weakest repair of the 7 changes one other test scan at `block1`, none at"
    assert why in text_of("12", "exercises.md")
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


@pytest.mark.slow
def test_the_loss_falls_more_slowly_with_power_sgd_from_each_of_ten_initializations(tmp_path: Path) -> None:
    """One process with 32 scans takes the same steps as two with 16: PowerSGD averages, and so does DDP."""
    says("13", "the loss falls more slowly. It did so from each of the ten initializations that we tried.")
    images, labels = samples.digits("train")

    def last_losses(seed: int, compress: bool) -> float:
        torch.manual_seed(seed)
        ddp = DistributedDataParallel(samples.DigitCNN())
        if compress:
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer, losses = torch.optim.Adam(ddp.parameters(), lr=0.003), []
        for rows in torch.arange(1280).split(32):
            loss = F.cross_entropy(ddp(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return statistics.mean(losses[-10:])

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        for seed in range(10):
            assert last_losses(seed, compress=True) > 1.5 * last_losses(seed, compress=False)
    finally:
        dist.destroy_process_group()
