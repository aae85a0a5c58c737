"""Training runs in float16 for chapter 20: one meets black images, one is lost, one is healthy; and their pictures."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import samples
from hookscope.pictures.colors import DATA, DOOR, INK, LINE, WRONG, WRONG_SOFT, to_rgb
from hookscope.pictures.picture import Picture, from_figure

__all__ = [
    "Alarm",
    "NormNet",
    "TrainingRun",
    "Update",
    "draw_alarms",
    "draw_losses",
    "draw_run",
    "healthy_run",
    "is_finite",
    "lost_run",
    "norm_cnn",
    "norm_net",
    "record_run",
    "train_padded",
]

STEPS = 40
"""The steps of a run of the small network."""
Alarm = tuple[int, str]
Look = Callable[[int], object]
Update = Callable[[str, Tensor, Tensor], Tensor]


def is_finite(value: object) -> bool:
    """Whether all numbers are finite, in a tensor or in tuples and lists of tensors."""
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    return not isinstance(value, Tensor) or bool(value.isfinite().all())


# -- black images -----------------------------------------------------------------------------------------------------


def norm_cnn(norm: Callable[[], nn.Module], seed: int = 0) -> nn.Sequential:
    """Return a CNN of three blocks in float16, with a norm in each."""
    net = nn.Sequential()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for number, (inputs, outputs) in enumerate([(1, 8), (8, 16), (16, 16)], start=1):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            layers = OrderedDict(conv=conv, norm=norm(), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
            net.add_module(f"block{number}", nn.Sequential(layers))
        net.add_module("head", nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(144, 10))))
    return net.half()


def train_padded(net: nn.Module, losses: list[float], epochs: int = 2) -> None:
    """Train on 300 digits in batches of 64; 20 black images with the label -100 fill the last batch.

    Args:
        net: a CNN in float16.
        losses: the loss of each step is appended.
        epochs: five steps each.

    """
    train = samples.digits("train")
    images = torch.cat([train.images[:300], torch.zeros(20, 1, 28, 28)]).half()
    labels = torch.cat([train.labels[:300], torch.full((20,), -100)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for rows in torch.arange(len(images)).split(64):  # type: ignore[no-untyped-call]
            loss = F.cross_entropy(net(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())


# -- a run with a mistake, and a healthy one --------------------------------------------------------------------------


# These runs are the same on every processor, to the bit. Processors add in different orders, so float32 sums differ in
# their last bits, and some are rounded to another float16. Here weights, gradients and outputs are float16, and their
# sums are computed in float64: a difference in the last bits of those is too small to change a float16.


class HalfLinear(nn.Linear):
    """A Linear layer that adds in float64, as a GPU adds in float32, and returns float16."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias, dtype=torch.float64)  # initial weights, too: `norm_net` rounds them

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, outputs) for (N, inputs)."""
        bias = None if self.bias is None else self.bias.double()
        return F.linear(x.double(), self.weight.double(), bias).half()


class MeanSquare(nn.Module):
    """Returns the mean of the squares of each row; the squares are float16."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 1) for (N, width)."""
        return x.square().double().mean(dim=1, keepdim=True).half()


class _NormBlock(nn.Module):
    """A Linear layer whose output is divided by its own size, and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.square, self.relu = HalfLinear(inputs, outputs, bias=False), MeanSquare(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.relu((x / (self.square(x).double() + 1e-3).sqrt()).half())  # type: ignore[no-any-return]


class NormNet(nn.Module):
    """Reads digits of 7 × 7 pixels: three blocks that divide by their own size, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.block1, self.block2, self.block3 = _NormBlock(49, 16), _NormBlock(16, 16), _NormBlock(16, 16)
        self.head = HalfLinear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, 10) for (N, 49)."""
        return self.head(self.block3(self.block2(self.block1(x))))  # type: ignore[no-any-return]


def norm_net(seed: int = 1) -> NormNet:
    """Return an untrained `NormNet` in float16; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = NormNet()
        for block, gain in zip((net.block1, net.block2, net.block3), torch.rand(3), strict=True):
            nn.init.normal_(block.linear.weight, std=float(0.25 + gain / 8))
        return net.half()


def lost_run(model: nn.Module, look: Look | None = None, update: Update | None = None) -> list[float]:
    """Train with a weight decay of the wrong sign, and return the loss of each step.

    Args:
        model: a `NormNet`.
        look: called with the number of the step, when the model has returned.
        update: computes each new weight in float64, in place of the update with the mistake.

    """
    return _train(model, update or partial(_decay, decay=-0.5), scale=1.0, look=look)


def healthy_run(model: nn.Module, look: Look | None = None) -> list[float]:
    """Train as it should be, on pixels from 0 to 64, and return the loss of each step.

    Args:
        model: a `NormNet`.
        look: called with the number of the step, when the model has returned.

    """
    return _train(model, partial(_decay, decay=2**-6), scale=64.0, look=look)


def _decay(name: str, weight: Tensor, grad: Tensor, decay: float) -> Tensor:
    new = weight - 2**-4 * grad
    return new * (1 - decay) if name.startswith("block") else new


def _train(model: nn.Module, update: Update, scale: float, look: Look | None) -> list[float]:
    pixels, labels = _pixels()
    losses = list[float]()
    torch.manual_seed(0)
    for step in range(STEPS):
        rows = torch.randint(len(pixels), (128,))
        logits = model(scale * pixels[rows])
        if look is not None:
            look(step)
        loss = F.cross_entropy(logits.double(), labels[rows])
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(update(name, p.double(), p.grad.double()))  # type: ignore[union-attr]
        losses.append(loss.item())
    return losses


@lru_cache(maxsize=1)
def _pixels() -> tuple[Tensor, Tensor]:
    images, labels = samples.digits("train")
    return F.avg_pool2d(images.double(), 4).flatten(1).half(), labels


class TrainingRun(NamedTuple):
    """A training run: its losses, and for each step and module the largest number that the module returned.

    Attributes:
        names: of the modules, the model itself left out.
        first: the first output that is not finite: its step and the name of its module.
        loss: the first step whose loss is not finite.

    """

    losses: list[float]
    names: list[str]
    largest: list[list[float]]
    first: Alarm | None
    loss: int | None


def record_run(model: nn.Module, train: Callable[[nn.Module], Sequence[float]]) -> TrainingRun:
    """Train, and note what each module returned.

    Args:
        model: each of its modules is called once in a step, and returns one tensor.
        train: trains the model, and returns the losses.

    """
    names = [name for name, _ in model.named_modules() if name]
    largest: list[list[float]] = []
    alarms: list[Alarm] = []

    def begin(module: nn.Module, args: object) -> None:
        largest.append([0.0] * len(names))

    def note(name: str, module: nn.Module, args: object, output: Tensor) -> None:
        if not is_finite(output):
            alarms.append((len(largest) - 1, name))
        largest[-1][names.index(name)] = output.detach().abs().amax().item()

    with ExitStack() as hooks:
        hooks.enter_context(model.register_forward_pre_hook(begin))
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(partial(note, name)))
        losses = list(train(model))
    lost = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    return TrainingRun(losses, names, largest, alarms[0] if alarms else None, lost)


# -- pictures ---------------------------------------------------------------------------------------------------------


def draw_alarms(net: nn.Module, alarms: Sequence[Alarm], losses: Sequence[float]) -> Picture:
    """Draw a square for each module and step, red where the output was not finite, and the losses below."""
    from matplotlib.figure import Figure

    names = [name for name, module in net.named_modules() if name and not [*module.children()]]
    bad = torch.zeros(len(names) + 1, len(losses))
    for step, name in alarms:
        if name in names:
            bad[names.index(name), step] = 1
    bad[-1] = torch.tensor([0.0 if math.isfinite(loss) else 1.0 for loss in losses])
    figure = Figure(figsize=(7, 0.27 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(_colors(bad).numpy(), aspect="auto")
    for row, step in bad.nonzero().tolist():
        axes.text(step, row, "NaN", ha="center", va="center", fontsize=8, color="white")
    axes.set(xticks=range(len(losses)), yticks=range(len(names) + 1), yticklabels=[*names, "loss"], xlabel="step")
    axes.set_xticks([step - 0.5 for step in range(1, len(losses))], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, len(names) + 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    rows: list[dict[str, object]] = [
        {
            "step": step,
            "not finite": ", ".join(name for at, name in alarms if at == step),
            "loss": "finite" if math.isfinite(loss) else "NaN",
        }
        for step, loss in enumerate(losses)
    ]
    alt = f"A square for each layer and each of {len(losses)} steps. Red ones are not finite; the table lists them."
    return from_figure(figure, alt, "What each layer returned: finite (gray) or not (red)", rows)


def _colors(bad: Tensor) -> Tensor:
    colors = torch.tensor([to_rgb(color) for color in (DOOR, WRONG)])
    return colors[bad.long()]


def draw_run(run: TrainingRun, alarm: Alarm | None = None, words: str = "") -> Picture:
    """Draw the losses of a run, and below them how large each module's output was in each step.

    Args:
        run: what was recorded.
        alarm: a watchdog's first alarm, which gets a ring.
        words: stand below.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.2 if words else 5.2), layout="constrained")
    ratios = [1, 2.2, 0.5] if words else [1, 2.2]
    top, bottom, *below = figure.subplots(len(ratios), 1, height_ratios=ratios)
    steps, finite = len(run.losses), [loss if math.isfinite(loss) else math.nan for loss in run.losses]
    top.plot(range(steps), finite, "o-", color=DATA[0], markersize=3)
    top.set(ylabel="loss", xlim=(-0.5, steps - 0.5), xticks=[])
    if run.loss is not None:
        top.axvspan(run.loss - 0.5, steps - 0.5, color=WRONG_SOFT)
        top.text(run.loss - 0.3, 0.85, "NaN", transform=top.get_xaxis_transform(), color=WRONG, weight="bold")
    sizes = torch.tensor(run.largest).T
    powers = sizes.clamp(min=0.01).log10().where(sizes.isfinite(), torch.nan)
    shown = bottom.imshow(powers.numpy(), aspect="auto", cmap="Blues", vmin=-1, vmax=5)
    bottom.imshow(_overlay(sizes).numpy(), aspect="auto")
    bottom.set(yticks=range(len(run.names)), yticklabels=run.names, xlabel="step")
    bar = figure.colorbar(shown, ax=bottom, ticks=[0, 2, 4])
    bar.ax.set_yticklabels(["1", "100", "10,000"])
    bar.set_label("largest number; red: inf or NaN")
    if alarm is not None and alarm[1] in run.names:
        place: dict[str, Any] = {"markersize": 18, "markeredgewidth": 3, "markerfacecolor": "none"}
        bottom.plot(alarm[0], run.names.index(alarm[1]), "o", color=INK, **place)
    if words:
        below[0].axis("off")
        below[0].text(0, 1, words, va="top", fontsize=11, color=INK, linespacing=1.4)
    rang = f" A ring is at step {alarm[0]}, {alarm[1]}." if alarm is not None else ""
    lost = f"The loss is NaN from step {run.loss} on." if run.loss is not None else "The loss is finite in all steps."
    alt = f"Above, the loss of {steps} steps. {lost} Below, how large the output of each module was.{rang} {words}"
    rows: list[dict[str, object]] = [
        {
            "step": step,
            "loss": f"{run.losses[step]:.3g}",
            "largest number": f"{max(each):.3g}",
            "not finite": ", ".join(name for name, x in zip(run.names, each, strict=True) if not math.isfinite(x)),
        }
        for step, each in enumerate(run.largest)
        if step % 5 == 0 or (run.first and run.first[0] <= step <= (run.loss or steps))
    ]
    return from_figure(figure, " ".join(alt.split()), "One training run", rows)


def _overlay(sizes: Tensor) -> Tensor:
    """Red and opaque where a size is not finite, else transparent."""
    bad = (~sizes.isfinite()).float()[..., None]
    color = torch.tensor(to_rgb(WRONG))
    return torch.cat([bad * color, bad], dim=-1)


def draw_losses(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture:
    """Draw the losses of training runs that differ in the hook that was on. A cross marks the step before a NaN.

    Args:
        runs: for each run, the name of a hook and the losses with it. The first hook of a run is drawn in gray.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(runs), 3), layout="constrained")
    rows: list[dict[str, object]] = []
    for axes, (title, of_hook) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        plain, *others = of_hook.values()
        looks = iter([(DATA[0], "--"), (DATA[1], "-"), (INK, ":")] * len(others))
        for name, losses in of_hook.items():
            last = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
            color, style = (LINE, "-") if losses is plain else next(looks)
            width = 5 if losses is plain else 1.8  # what coincides with it stays visible
            axes.plot(range(last), losses[:last], style, color=color, linewidth=width, label=name)
            if last < len(losses):
                axes.plot(last - 1, losses[last - 1], "x", color=WRONG, markersize=10, markeredgewidth=3)
                axes.annotate("NaN", (last, losses[last - 1]), color=WRONG, weight="bold", va="bottom")
            departs = next(
                (step for step, pair in enumerate(zip(plain, losses, strict=True)) if len({*pair}) > 1), None
            )
            end = "NaN" if last < len(losses) else f"{losses[-1]:.2f}"
            rows.append({"run": title, "hook": name, "other losses from step": departs, "loss at the end": end})
        finite = [loss for losses in of_hook.values() for loss in losses if math.isfinite(loss)]
        is_wide = max(finite) > 20 * min(finite)
        axes.set(title=title, xlabel="step", ylabel="loss (log scale)" if is_wide else "loss")
        axes.set_yscale("log" if is_wide else "linear")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    alt = "Losses by step. " + " ".join(
        f"{row['run']}, {row['hook']}: {row['loss at the end']} at the end." for row in rows
    )
    return from_figure(figure, alt, "The same training with other hooks", rows)
