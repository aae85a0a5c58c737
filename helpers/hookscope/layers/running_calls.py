"""Tell the calls of modules that have not returned apart, also those of a module that calls itself."""

from __future__ import annotations

from types import FrameType

from torch import nn

__all__ = ["call_id"]

_runs = nn.Module._call_impl.__code__


def call_id(frame: FrameType | None) -> int:
    """Return a number of the call of a module that a hook belongs to, which no other call has until that one ends.

    The module alone does not say it: where it calls itself, and a hook of somebody else or a `KeyboardInterrupt` ends
    the inner call, torch does not run the hooks that would tell.

    Args:
        frame: from which the hook was called, `sys._getframe(1)` in it.

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
