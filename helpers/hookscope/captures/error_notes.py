"""What to say beside an exception that a pass raised while a capture was open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from hookscope.captures.call import Call
from hookscope.layers import Modules, is_write_to_hooked

__all__ = ["error_notes"]


def error_notes(error: BaseException, model: nn.Module, calls: Sequence[Call], last: Call | None) -> Iterator[str]:
    """Yield sentences for `BaseException.add_note`.

    Args:
        error: what was raised.
        model: the model that was captured.
        calls: its calls until then.
        last: the last of them that returned.

    """
    at = f", the last one {calls[-1].label}" if calls else ""
    was, it = ("1 call was", "it is") if len(calls) == 1 else (f"{len(calls)} calls were", "they are")
    yield f"hookscope: {was} captured{at}; {it} in the error's .capture"
    if is_write_to_hooked(error):
        yield _views(model, last)


def _views(model: nn.Module, last: Call | None) -> str:
    hooked = [
        name or "(root)"
        for module, name in Modules(model).names.items()
        if (module._backward_hooks and module._is_full_backward_hook) or module._backward_pre_hooks
    ]
    if last is not None and last.layer in hooked:
        hooked = [last.layer]
    which = f"layer {hooked[0]!r}" if len(hooked) == 1 else f"one of the layers {', '.join(map(repr, hooked))}"
    if not hooked:
        which = "a layer (it is a global hook, or hooked outside this model)"
    return (
        f"hookscope: a full backward hook sits on {which}. Such hooks turn what the layer receives and returns into "
        "views, which must not be changed in place. Take the hook off and read the gradient from "
        "capture(model, ..., gradients=True), which hooks the output tensor instead; or use inplace=False"
    )
