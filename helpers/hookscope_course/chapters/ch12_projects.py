"""What chapter 12 trains and draws: units that die and wake up, blocks of memory, and what a learner's tools found."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hookscope import samples
from hookscope.pictures.colors import CHANGED, CHANGED_SOFT, DOOR, INK, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope_course.chapters.ch06_damaged_networks import patient
from hookscope_course.practice.blank import holds_blank
from hookscope_course.practice.feedback_card import Card

__all__ = [
    "draw_blocks",
    "draw_dead_units",
    "memory_of",
    "run_blocks",
    "show_channels",
    "show_push",
    "train_epoch",
]

_DEAD, _FIRED, _WOKE = (0.1, 0.12, 0.15), (0.72, 0.85, 0.97), (0.95, 0.55, 0.2)
_LATER = Card("No picture yet.", "your picture appears here when no `____` is left in your code")
Fired = Mapping[str, Tensor]


def run_blocks(net: nn.Module, images: Tensor) -> Tensor:
    """Return the output of the last block of a digit CNN for images, divided by 10 and in float64."""
    exact = copy.deepcopy(net).double()
    with torch.no_grad():
        output: Tensor = exact.block3(exact.block2(exact.block1(images.double())))  # type: ignore[operator]
    return output / 10


def train_epoch(net: nn.Module, inputs: Tensor, labels: Tensor, lr: float) -> None:
    """Train a network for one epoch, with plain SGD.

    Args:
        net: returns logits (N, 10) for inputs (N, ...).
        inputs: one for each label.
        labels: the digits.
        lr: the learning rate.

    """
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for rows in torch.randperm(len(inputs)).split(48):  # type: ignore[no-untyped-call]
        loss = F.cross_entropy(net(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def draw_dead_units(history: Sequence[Fired]) -> Picture:
    """Draw the units of each layer as squares, epoch by epoch: dead ones are black, those that woke up orange.

    Args:
        history: for each epoch, the name of a layer and whether each of its units fired.

    """
    from matplotlib.figure import Figure

    names = list(history[0])
    figure = Figure(figsize=(1.5 * len(history), 1.75 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), len(history), squeeze=False)
    rows: list[dict[str, object]] = []
    for line, name in zip(grid, names, strict=True):
        before: Tensor | None = None
        line[0].set_ylabel(f"layer {name}", fontsize=11)
        for epoch, (axes, fired) in enumerate(zip(line, history, strict=True), start=1):
            alive = fired[name].cpu()
            woke = alive & ~before if before is not None else torch.zeros_like(alive)
            axes.imshow(_squares(alive, woke).numpy())
            axes.set(xticks=[], yticks=[], title=f"epoch {epoch}" if name == names[0] else "")
            axes.set_xlabel(f"{int((~alive).sum())} dead, {int(woke.sum())} woke", fontsize=9)
            rows.append({"layer": name, "epoch": epoch, "dead": int((~alive).sum()), "woke up": int(woke.sum())})
            before = alive
    alt = f"For each layer, {len(history)} squares of units: dead ones are black, those that woke up orange."
    caption = "Black: no image woke the unit in the whole epoch. Orange: dead in the epoch before, and now it fires."
    return from_figure(figure, alt, caption, rows)


def _squares(alive: Tensor, woke: Tensor, across: int = 8) -> Tensor:
    colors = torch.tensor([_DEAD, _FIRED, _WOKE, (1.0, 1.0, 1.0)])
    kinds = alive.long() + woke.long()
    kinds = F.pad(kinds, (0, -len(kinds) % across), value=3)
    return _framed(colors[kinds.unflatten(0, (-1, across))])  # type: ignore[no-untyped-call]


def _framed(tiles: Tensor) -> Tensor:
    """Enlarge tiles (H, W, 3), and leave a white line between them."""
    large = tiles.repeat_interleave(7, 0).repeat_interleave(7, 1)
    large[6::7] = 1
    large[:, 6::7] = 1
    return large


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Return a key for a dict: two tensors have the same one if they show the same values in the same memory."""
    # The address alone is not enough: when a tensor is freed, another one may get its memory.
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return storage, tensor._version, tensor.storage_offset(), tensor.shape, tensor.stride()


def draw_blocks(kept: Mapping[str, Sequence[tuple[int, int]]]) -> Picture:
    """Draw storages as blocks in a row, each as wide as its bytes. Copies of one tensor have the letter of the tensor.

    Args:
        kept: for each way of keeping tensors, an address and its bytes for each tensor, in the order of the pass. The
            first way keeps the tensors as they are.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.8 + 0.7 * len(kept)), layout="constrained")
    axes = figure.subplots()
    names = list(kept)
    sources = [address for address, _ in kept[names[0]]]
    bytes_of = dict(kept[names[0]])
    order = sorted(bytes_of, key=lambda address: -bytes_of[address])
    letters = {address: chr(ord("A") + at) for at, address in enumerate(order)}
    halved = {
        source
        for pairs in kept.values()
        for source, (_, size) in zip(sources, pairs, strict=True)
        if size < bytes_of[source]
    }
    most = max(sum(dict(pairs).values()) for pairs in kept.values())
    rows: list[dict[str, object]] = []
    for line, (name, pairs) in enumerate(kept.items()):
        blocks: dict[int, tuple[int, int]] = {}
        for source, (address, size) in zip(sources, pairs, strict=True):
            blocks.setdefault(address, (source, size))
        left = 0.0
        for source, size in sorted(blocks.values(), key=lambda block: order.index(block[0])):
            fill, edge = (CHANGED_SOFT, CHANGED) if source in halved else (DOOR, MUTED)
            axes.barh(line, size / 1e6, left=left, color=fill, edgecolor=edge, linewidth=1.5, height=0.6)
            if size > most / 30:
                text = f"{letters[source]}\n{size / 1e6:.1f}"
                axes.text(left + size / 2e6, line, text, ha="center", va="center", fontsize=9, color=INK)
            rows.append({"kept as": name, "tensor": letters[source], "bytes": size})
            left += size / 1e6
        axes.text(left + most / 1e8, line, f"{left:.1f} MB", va="center", weight="bold", color=INK)
    axes.set(yticks=range(len(kept)), yticklabels=names, xticks=[], xlim=(0, 1.14 * most / 1e6))
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    each = "; ".join(
        f"{name}: {len(dict(pairs))} blocks, {sum(dict(pairs).values()) / 1e6:.1f} MB" for name, pairs in kept.items()
    )
    alt = f"Rows of blocks, each as wide as its bytes. {each}."
    return from_figure(figure, alt, "Kept for backward, in MB. Gray: not stored as bfloat16.", rows)


# -- what a learner's tool found -------------------------------------------------------------------------------------


def _show(found: object) -> None:
    from IPython.display import display

    display(found)  # type: ignore[no-untyped-call]


def show_channels(
    watch_relus: Callable[[nn.Module], AbstractContextManager[Fired]],
    model: nn.Module | None = None,
    images: Tensor | None = None,
) -> None:
    """Draw which channels of a model fired, with the watchdog of a learner.

    Args:
        watch_relus: to be used as `with watch_relus(model) as fired`.
        model: another one than a digit CNN that had an accident.
        images: other ones than the test digits.

    """
    if holds_blank(watch_relus):
        return _show(_LATER)
    whose = "in a digit CNN. One layer died, and the next one lives on its biases" if model is None else "in your model"
    model = patient() if model is None else model
    with torch.no_grad(), watch_relus(model) as fired:
        model(samples.digits("test").images if images is None else images)
    for name, units in fired.items():
        if not isinstance(units, Tensor) or units.ndim != 1:
            has = f"the shape {tuple(units.shape)}" if isinstance(units, Tensor) else f"a {type(units).__name__}"
            return _show(Card("No picture yet.", f"`fired[{name!r}]` has {has}; it needs one boolean for each channel"))
    if not fired:
        return _show(Card("No picture yet.", "your tool has found no ReLU"))
    return _show(_draw_channels(fired, whose))


def _draw_channels(fired: Fired, whose: str) -> Picture:
    from matplotlib.figure import Figure

    lines = [-(-len(units) // 32) for units in fired.values()]
    figure = Figure(figsize=(7, 0.3 + 0.3 * sum(lines)), layout="constrained")
    grid = figure.subplots(len(fired), squeeze=False, height_ratios=lines)[:, 0]
    for axes, (name, units) in zip(grid, fired.items(), strict=True):
        axes.imshow(_squares(units.cpu(), torch.zeros_like(units.cpu()), across=32).numpy())
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", color=INK)
    rows: list[dict[str, object]] = [
        {"layer": name, "channels": len(units), "dead": int((~units).sum())} for name, units in fired.items()
    ]
    dead = ", ".join(f"{row['dead']} of {row['channels']} in {row['layer']}" for row in rows)
    alt = f"Rows of squares, one for each channel. Dead are {dead}."
    return from_figure(figure, alt, f"Dead channels (black) {whose}", rows)


def show_push(
    pushed: Callable[..., AbstractContextManager[object]],
    layer: str = "block3",
    start: int = 8,
    goal: int = 7,
) -> None:
    """Push the test digits that the digit CNN reads wrongly, among digits that should stay, with a learner's tool.

    Args:
        pushed: called as `pushed(model, layer, images, labels, start, goal, strength)`, on the train digits.
        layer: the layer that is pushed.
        start: what the model reads; without a wrong scan, the digit that is pushed.
        goal: the digit of the wrong scans, and what the push leads to.

    """
    from hookscope_course.figures import SteeredScans

    if holds_blank(pushed):
        return _show(_LATER)
    model, (images, labels) = samples.digit_cnn(), samples.digits("test")
    outputs: list[Tensor] = []
    with torch.no_grad():
        reads = model(images).argmax(dim=1)
        for strength in (0.0, 1.0):
            with (
                pushed(model, layer, *samples.digits("train"), start, goal, strength),
                model.get_submodule(layer).register_forward_hook(lambda module, args, output: outputs.append(output)),
            ):
                model(images[:1])
    push = (outputs[1] - outputs[0])[0]
    random = torch.randn(push.shape, generator=torch.Generator().manual_seed(0)).to(push)
    random *= push.norm() / random.norm()
    wrong = images[(labels == goal) & (reads == start)]
    shown = torch.cat([wrong, images[labels == start]])[:24]
    pushes = {f"toward {goal}": push, "random": random}
    return _show(SteeredScans(model, layer, pushes, shown, goal, marked=range(len(wrong))))
