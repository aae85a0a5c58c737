"""The dictionary of hooks, drawn from the one that torch keeps."""

from __future__ import annotations

import pytest
from torch import nn

from hookscope_course.figures.hook_dictionary import Entries, draw_entries, read_entries


def look(module: nn.Module, args: object, output: object) -> None:
    """Do nothing."""


def test_three_registrations_are_three_entries_and_the_handle_deletes_its_own() -> None:
    relu = nn.ReLU()
    states = []
    for run in range(3):
        handle = relu.register_forward_hook(look)
        states.append(read_entries(relu, handle, f"run {run + 1}"))
    handle.remove()
    states.append(read_entries(relu, handle, "after remove"))
    assert [list(state.hooks.values()) for state in states] == [["look"] * count for count in (1, 2, 3, 2)]
    assert [state.handle for state in states[:3]] == [[*state.hooks][-1] for state in states[:3]]
    drawing = draw_entries(states)
    assert drawing.alt.endswith("after remove: 2 entries, and the handle stores a key that is no longer there.")
    assert drawing.svg.count(": look</text>") == 1 + 2 + 3 + 2
    assert drawing.svg.count("stroke-dasharray") == 1
    assert drawing.svg.count(">handle</text>") == 4
    assert drawing._repr_mimebundle_() == {"text/plain": drawing.alt, "text/html": drawing.svg}


def test_no_hook_and_no_handle() -> None:
    drawing = draw_entries([read_entries(nn.ReLU(), title="at first")])
    assert repr(drawing) == "The dictionary _forward_hooks at first: 0 entries."
    assert ">empty</text>" in drawing.svg


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="0 states"):
        draw_entries([])
    with pytest.raises(ValueError, match="at most 8 hooks"):
        draw_entries([Entries("many", dict.fromkeys(range(9), "look"))])
