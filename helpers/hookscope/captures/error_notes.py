"""Write the notes for an exception that the model raised inside the block of a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from hookscope.captures.call import Call
from hookscope.error_pages import append_page
from hookscope.layers import Modules, is_write_to_hooked
from hookscope.wrong_inputs import describe_wrong_input

__all__ = ["error_notes"]


def error_notes(error: BaseException, model: nn.Module, calls: Sequence[Call], last: Call | None) -> Iterator[str]:
    """Yield sentences for `BaseException.add_note`.

    Args:
        error: the exception.
        model: the model.
        calls: its calls before the exception.
        last: the last call that returned.

    """
    at = f", the last one in {calls[-1].label}" if calls else ""
    was = "1 call was" if len(calls) == 1 else f"{len(calls)} calls were"
    yield f"hookscope: {was} captured before this error{at}. Read the capture in the error's .capture"
    if is_write_to_hooked(error):
        yield _views(model, last)
    if reason := describe_wrong_input(model, error):
        yield f"hookscope: {reason}"


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
        which = "a layer (it might be a global hook, or the layer might not be in this model)"
    text = (
        f"hookscope: there is a full backward hook on {which}. Such hooks turn the inputs and outputs of a layer into "
        "views, and torch forbids in-place operations on these views. Remove the hook, and read the gradient from "
        "capture(model, ..., gradients=True), which uses tensor hooks instead; or use inplace=False"
    )
    return append_page(text, "full_backward_hook")
