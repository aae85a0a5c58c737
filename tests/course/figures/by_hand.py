"""Hooks registered by hand on a layer of three lines: what the figures are held against."""

from __future__ import annotations

import torch
from torch import nn


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.weight * x


def run_by_hand(
    hooks: dict[str, str], layer: nn.Module | None = None
) -> tuple[list[tuple[str, float]], dict[str, float]]:
    """Register hooks on y = 2 · x, call it with 3, go back.

    Returns:
        Which hook fired and what it was given, in their order, and what came out.

    """
    seen: list[tuple[str, float]] = []
    if layer is None:
        layer, x = Times(), torch.tensor(3.0, requires_grad=True)
    else:
        nn.init.constant_(layer.weight, 2.0)
        x = torch.tensor([[3.0]], requires_grad=True)

    def note(kind, tensor):
        seen.append((kind, tensor.item()))
        return 10 * tensor if hooks[kind] == "multiply" else None

    def in_a_tuple(kind, tensor):
        new = note(kind, tensor)
        return None if new is None else (new,)

    def post(leaf):
        seen.append(("post_accumulate_grad", leaf.grad.item()))
        if hooks["post_accumulate_grad"] == "multiply":
            leaf.grad.mul_(10)

    register = {
        "forward_pre": lambda: layer.register_forward_pre_hook(lambda m, args: in_a_tuple("forward_pre", args[0])),
        "forward": lambda: layer.register_forward_hook(lambda m, args, output: note("forward", output)),
        "full_backward_pre": lambda: layer.register_full_backward_pre_hook(
            lambda m, grad_output: in_a_tuple("full_backward_pre", grad_output[0])
        ),
        "full_backward": lambda: layer.register_full_backward_hook(
            lambda m, grad_input, grad_output: in_a_tuple("full_backward", grad_input[0])
        ),
        "tensor_weight": lambda: layer.weight.register_hook(lambda grad: note("tensor_weight", grad)),
        "post_accumulate_grad": lambda: layer.weight.register_post_accumulate_grad_hook(post),
        "tensor_x": lambda: x.register_hook(lambda grad: note("tensor_x", grad)),
    }
    for kind in hooks:
        if kind in register:
            register[kind]()
    y = layer(x)
    if "retain_grad" in hooks:  # before the tensor hook: the order of the two lines makes no difference
        y.retain_grad()
    if "tensor_y" in hooks:
        y.register_hook(lambda grad: note("tensor_y", grad))
    y.backward()
    ends = {"y": y.item(), "x.grad": x.grad.item(), "weight.grad": layer.weight.grad.item()}
    if "retain_grad" in hooks:
        ends["y.grad"] = y.grad.item()
    return seen, ends
