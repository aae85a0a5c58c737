"""The two gradients of chapter 09, each from a different kind of backward hook."""

from __future__ import annotations

import warnings

from torch import Tensor

from hookscope import samples

__all__ = ["compute_pictures"]


def compute_pictures(digit: Tensor) -> dict[str, Tensor]:
    """Compute what two kinds of backward hooks on `block3` get as the first entry of `grad_input`.

    Args:
        digit: a scan, (1, 1, 28, 28); the gradient is that of the score of "5".

    Example:
        >>> {name: tuple(grad.shape) for name, grad in compute_pictures(samples.digit(5)).items()}
        {'A': (1, 32, 14, 14), 'B': (1, 24, 14, 14)}

    """
    gradients = dict[str, Tensor]()
    for name, method in (("A", "register_backward_hook"), ("B", "register_full_backward_hook")):
        hooked, kept = samples.digit_cnn(), list[Tensor]()

        def keep(
            module: object, grad_input: tuple[Tensor, ...], grad_output: object, kept: list[Tensor] = kept
        ) -> None:
            kept.append(grad_input[0])

        with getattr(hooked.block3, method)(keep), warnings.catch_warnings(action="ignore"):
            hooked(digit)[0, 5].backward()
        gradients[name] = kept.pop()
    return gradients
