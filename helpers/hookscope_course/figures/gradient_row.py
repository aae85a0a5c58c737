"""Draw how gradients flow through the tensors of a computation, and through the hooks of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookscope.pictures.colors import BACKWARD, BACKWARD_SOFT, FORWARD, HOOK, MUTED, PAGE, WRONG, WRONG_SOFT
from hookscope.pictures.picture import Picture, as_text, from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_gradients", "draw_hooks"]


def draw_gradients(tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None = None) -> Picture:
    """Draw tensors in a row, from the input to the loss, and below each the gradient that came back to it.

    Each box has the first number of its tensor. A gradient with an inf or a NaN in it is red, with a thick frame.

    Args:
        tensors: the tensors by name, in the order in which they were computed.
        gradients: the gradients that hooks have seen, by the same names; None draws the forward pass only.

    Raises:
        ValueError: a tensor has nothing to do with the ones before it, or a gradient has no tensor; names it.

    Example:
        >>> import torch
        >>> x = torch.tensor(4.0, requires_grad=True)
        >>> draw_gradients({"x": x, "root": x.sqrt()}).rows
        [{'tensor': 'x', 'value': 4.0}, {'tensor': 'root', 'value': 2.0}]

    """
    if unknown := [name for name in gradients or {} if name not in tensors]:
        raise ValueError(f"there is a gradient of {unknown[0]!r}, and no such tensor. Use the names of the tensors")
    sources = _find_sources(tensors)
    rows: list[dict[str, object]] = []
    broken = []
    for name, tensor in tensors.items():
        row: dict[str, object] = {"tensor": name, "value": _first(tensor)}
        if gradients is not None:
            grad = gradients.get(name)
            row["gradient"] = "–" if grad is None else _first(grad)
            if grad is not None and not grad.isfinite().all():
                broken.append(name)
        rows.append(row)
    alt = f"The tensors {', '.join(tensors)} in a row, each computed from those before it."
    if gradients is not None:
        back = ", ".join(f"{row['tensor']} {_text(row['gradient'])}" for row in reversed(rows))
        alt += f" Gradients going back: {back}. Red: {', '.join(reversed(broken)) or 'none'}."
    names = {name: "" if tensor.grad_fn is None else _operation(tensor) for name, tensor in tensors.items()}
    caption = "The first number of each tensor" + ("." if gradients is None else ", and below it that of its gradient.")
    figure = _draw(rows, sources, names, broken, gradients is not None)
    return from_figure(figure, alt=alt, caption=caption, rows=rows, heading="The numbers in the picture")


def _first(tensor: Tensor) -> float:
    return float(tensor.detach().flatten()[0])


def _text(value: object) -> str:
    return as_text(value).replace("-", "−") if isinstance(value, float) else str(value)


def _operation(tensor: Tensor) -> str:
    """Return the operation that made a tensor, such as "sqrt"."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn.name().split("Backward")[0].lower()


def _find_sources(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Find out in torch's graph from which of the tensors each one was computed."""
    nodes: dict[Any, str] = {}
    sources: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        found: list[str] = []
        todo = [tensor.grad_fn]
        while todo:
            node = todo.pop(0)
            for after, _ in () if node is None else node.next_functions:
                leaf = getattr(after, "variable", None)
                known = nodes.get(after) or next((each for each, other in tensors.items() if other is leaf), None)
                if known is None:
                    todo.append(after)
                elif known not in found:
                    found.append(known)
        if sources and not found:
            raise ValueError(f"{name!r} was not computed from the tensors before it. Leave it out, or put it first")
        sources[name] = found
        if tensor.grad_fn is not None:
            nodes[tensor.grad_fn] = name
    return sources


def _draw(
    rows: list[dict[str, object]],
    sources: Mapping[str, list[str]],
    operations: Mapping[str, str],
    broken: list[str],
    back: bool,
) -> Any:
    from matplotlib.figure import Figure

    names = [str(row["tensor"]) for row in rows]
    # Room for arrows that go over or under the boxes between, if there is one.
    bow = 0.75 if any(names.index(name) - names.index(each) > 1 for name in names for each in sources[name]) else 0
    low, high = (-1.75 - 0.73 * bow if back else -0.45), 0.45 + bow
    figure = Figure(figsize=(1.24 * len(names), 0.68 * (high - low)), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.55, len(names) - 0.45), ylim=(low, high))
    axes.set_axis_off()
    for place, row in enumerate(rows):
        _write_box(axes, place, 0, names[place], _text(row["value"]), FORWARD, False)
        if back:
            red = names[place] in broken
            _write_box(axes, place, -1.3, "gradient", _text(row["gradient"]), WRONG if red else BACKWARD, red)
    for name, found in sources.items():
        here = names.index(name)
        for source in found:
            there = names.index(source)
            _write_arrow(axes, there, here, 0, FORWARD, operations[name] if here - there == 1 else "")
            if back:
                color = WRONG if source in broken else BACKWARD
                _write_arrow(axes, here, there, -1.3, color, operations[name] if here - there == 1 else "")
    return figure


def _write_box(axes: Axes, x: float, y: float, name: str, value: str, color: str, red: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    fill = WRONG_SOFT if red else PAGE
    look = FancyBboxPatch(
        (x - 0.3, y - 0.3),
        0.6,
        0.6,
        boxstyle="round,pad=0.02",
        facecolor=fill,
        edgecolor=color,
        linewidth=3 if red else 1.4,
    )
    axes.add_patch(look)
    axes.text(x, y + 0.14, name, ha="center", va="center", fontsize=9, color=MUTED if name == "gradient" else "black")
    axes.text(x, y - 0.13, value, ha="center", va="center", fontsize=12, weight="bold", color=color)


def _write_arrow(axes: Axes, start: float, end: float, y: float, color: str, label: str) -> None:
    way = 1 if end > start else -1
    if abs(end - start) == 1:
        ends, bow = ((start + 0.33 * way, y), (end - 0.33 * way, y)), "arc3"
    else:  # over or under the boxes between
        up = 0.33 if way > 0 else -0.33
        ends, bow = ((start, y + up), (end, y + up)), "arc3,rad=-0.32"
    axes.annotate(
        "", ends[1], ends[0], arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "connectionstyle": bow}
    )
    axes.text((start + end) / 2, y + 0.12, label, ha="center", va="bottom", fontsize=9, color=MUTED)


def draw_hooks(hooks: Sequence[Callable[[Tensor], Tensor | None]], arrives: float, name: str = "y") -> Picture:
    """Run the hooks of one tensor, and draw what each got, and where `retain_grad` keeps the gradient.

    `retain_grad()` is called before the hooks are registered.

    Args:
        hooks: tensor hooks, in the order in which they are registered.
        arrives: the gradient that arrives at the tensor.
        name: the name of the tensor.

    Example:
        >>> draw_hooks([lambda grad: 10 * grad], 5.0).rows[-1]
        {'place': 'y.grad', 'gradient': 50.0}

    """
    passed: list[float] = []
    tensor = torch.tensor(1.0, requires_grad=True) * 1

    def look(grad: Tensor) -> None:
        passed.append(float(grad))

    tensor.retain_grad()
    tensor.register_hook(look)  # type: ignore[no-untyped-call]
    for hook in hooks:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        tensor.register_hook(look)  # type: ignore[no-untyped-call]
    torch.autograd.backward(tensor, torch.tensor(arrives))
    assert tensor.grad is not None
    kept = float(tensor.grad)
    names = [getattr(hook, "__name__", type(hook).__name__) for hook in hooks]
    rows: list[dict[str, object]] = [{"place": "arrives", "gradient": passed[0]}]
    rows += [{"place": f"after {each}", "gradient": value} for each, value in zip(names, passed[1:], strict=True)]
    rows.append({"place": f"{name}.grad", "gradient": kept})
    line = ", ".join(f"{row['place']} {_text(row['gradient'])}" for row in rows)
    alt = f"The hooks of {name} in a line. Gradient: {line}. retain_grad stands at the exit, after all hooks."
    figure = _draw_line(name, names, [_text(value) for value in passed], _text(kept))
    return from_figure(figure, alt=alt, rows=rows, heading="The numbers in the picture")


def _draw_line(name: str, hooks: list[str], passed: list[str], kept: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    end = 1.9 * len(hooks) + 1.2
    figure = Figure(figsize=(0.98 * (end + 2.4), 1.75), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.1, end + 1.3), ylim=(-1.05, 0.85))
    axes.set_axis_off()
    axes.plot([-0.55, end + 0.95], [0, 0], color=BACKWARD, linewidth=2.2, zorder=1)
    axes.annotate(
        "", (end + 1.25, 0), (end + 0.9, 0), arrowprops={"arrowstyle": "-|>", "color": BACKWARD, "linewidth": 2.2}
    )
    axes.text(-1.05, 0, f"arrives\nat {name}", va="center", fontsize=9.5, color=MUTED)
    axes.text(end + 0.75, 0.2, "flows on", va="bottom", ha="center", fontsize=9.5, color=MUTED)
    for place, value in enumerate(passed):
        at = 1.9 * place + 0.1
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": "white",
            "edgecolor": BACKWARD,
            "linewidth": 2.6 if place else 1.4,
        }
        axes.text(
            at, 0, value, ha="center", va="center", fontsize=13, weight="bold", color=BACKWARD, bbox=box, zorder=3
        )
    for place, hook in enumerate(hooks):
        at = 1.9 * place + 1.05
        axes.plot([at], [0], marker="o", markersize=24, color=HOOK, zorder=2)
        axes.text(at, 0.36, hook, ha="center", va="bottom", fontsize=9.5, color=HOOK, weight="bold")
    axes.add_patch(
        FancyBboxPatch(
            (end - 1.0, -0.95),
            1.5,
            0.38,
            boxstyle="round,pad=0.04",
            facecolor=BACKWARD_SOFT,
            edgecolor=BACKWARD,
            linewidth=1.4,
        )
    )
    axes.text(
        end - 0.25,
        -0.76,
        f"{name}.grad = {kept}",
        ha="center",
        va="center",
        fontsize=11,
        weight="bold",
        color=BACKWARD,
    )
    way = {"arrowstyle": "-|>", "color": BACKWARD, "linewidth": 1.6, "linestyle": "--"}
    axes.annotate("", (end + 0.1, -0.53), (end + 0.1, 0), arrowprops=way, zorder=1)
    axes.text(end + 0.2, -0.3, "retain_grad", ha="left", va="center", fontsize=9.5, color=MUTED)
    return figure
