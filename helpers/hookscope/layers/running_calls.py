"""Identify running calls of modules, even of a module that calls itself."""

from __future__ import annotations

from types import FrameType

from torch import nn

__all__ = ["call_id"]

_runs = nn.Module._call_impl.__code__


def call_id(frame: FrameType | None) -> int:
    """Return the ID of the module call that runs a hook. It is unique until this call ends.

    The module is not enough: if it calls itself and the inner call ends with an exception in another hook, torch does
    not run the remaining hooks of the inner call.

    Args:
        frame: the frame that called the hook: `sys._getframe(1)` in the hook.

    Example:
        >>> import sys, torch
        >>> numbers = []
        >>> def hook(*_):
        ...     numbers.append(call_id(sys._getframe(1)))
        >>> layer = nn.Identity()
        >>> handles = layer.register_forward_pre_hook(hook), layer.register_forward_hook(hook)
        >>> _ = layer(torch.ones(1))
        >>> numbers[0] == numbers[1]
        True

    """
    while frame is not None and frame.f_code is not _runs:
        frame = frame.f_back
    return id(frame)
