"""What `SharedMemory` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.shared_memory.figure import SharedMemory

PROMISES: dict[str, Promises] = {
    "SharedMemory": Promises(
        lambda _: SharedMemory(),
        {"step": 4, "keeps": "output.detach().clone()"},
        refused=(("step", 6, "the steps are 0 to 5"), ("keeps", "output", "choose one of output.detach()")),
    ),
}

CONTROLS: dict[str, Controls] = {
    "SharedMemory": Controls(
        "Names and memory",
        "from hookscope_course.figures import SharedMemory\nmemory = SharedMemory()\nmemory",
        ("button[aria-label='Next']",),
        "memory.step",
        "2",
        "button[aria-label='Next']",
        ("ArrowRight", "ArrowRight", "ArrowLeft", "End"),
        "5",
    ),
}
