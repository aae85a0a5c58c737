"""The pictures of gradients on their way: numbers as torch's, red where torch's are not finite."""

from __future__ import annotations

import io
import math

import pytest
import torch
from PIL import Image
from torch import Tensor

from hookscope_course.figures.gradient_row import draw_gradients, draw_hooks


def spread(x: Tensor) -> dict[str, Tensor]:
    centered = x - x.mean()
    variance = (centered**2).mean()
    std = variance.sqrt()
    return {"x": x, "centered": centered, "variance": variance, "std": std, "loss": (std - 1) ** 2}


def test_red_begins_where_torch_breaks() -> None:
    tensors, seen = spread(torch.full((4,), 5.0, requires_grad=True)), dict[str, Tensor]()
    assert draw_gradients(tensors).rows[0] == {"tensor": "x", "value": 5.0}
    for name, tensor in tensors.items():
        tensor.register_hook(lambda grad, name=name: seen.__setitem__(name, grad))  # type: ignore[no-untyped-call]
    torch.autograd.backward(tensors["loss"])
    assert [name for name, grad in seen.items() if not grad.isfinite().all()] == ["variance", "centered", "x"]
    picture = draw_gradients(tensors, seen)
    assert picture.alt.endswith("loss 1, std −2, variance −inf, centered nan, x nan. Red: variance, centered, x.")
    assert picture.rows[2] == {"tensor": "variance", "value": 0.0, "gradient": -math.inf}
    colors = Image.open(io.BytesIO(picture.png)).convert("RGB").getcolors(1 << 24) or []
    assert (0xFD, 0xE3, 0xE6) in [color for _, color in colors], "a broken gradient has a red box"
    healthy = spread(torch.tensor([1.0, 3.0], requires_grad=True))
    gradients = {"x": torch.zeros(2), "loss": torch.tensor(1.0)}
    assert draw_gradients(healthy, gradients).alt.endswith("std –, variance –, centered –, x 0. Red: none.")


def test_what_has_no_place_in_the_row_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="there is a gradient of 'y', and no such tensor"):
        draw_gradients({"x": x}, {"y": x})
    with pytest.raises(ValueError, match="'other' was not computed from the tensors before it"):
        draw_gradients({"x": x, "other": torch.ones(2)})


def test_retain_grad_stands_at_the_exit() -> None:
    picture = draw_hooks([lambda grad: 10 * grad, lambda grad: grad + 1, lambda grad: None], 5.0)
    assert [row["gradient"] for row in picture.rows] == [5, 50, 51, 51, 51]
    y = 2 * torch.tensor(3.0, requires_grad=True)
    y.register_hook(lambda grad: 10 * grad)  # type: ignore[no-untyped-call]
    y.retain_grad()
    y.register_hook(lambda grad: grad + 1)  # type: ignore[no-untyped-call]
    torch.autograd.backward(5 * y)
    assert y.grad == 51
    assert "y.grad 51. retain_grad stands at the exit" in picture.alt
