"""What `SymptomTree` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.symptom_tree.figure import SymptomTree

PROMISES: dict[str, Promises] = {
    "SymptomTree": Promises(
        lambda _: SymptomTree("Memory grows"),
        {"path": ["My hook is not called", "no"]},
        refused=(
            ("path", ["no such symptom"], "is not one of"),
            ("path", ["Memory grows", "maybe"], "is not one of"),
            ("path", ["Memory grows", "yes", "yes"], "is not one of"),
        ),
    ),
}

CONTROLS: dict[str, Controls] = {
    "SymptomTree": Controls(
        "The symptom tree",
        """
from hookscope_course.figures import SymptomTree
tree = SymptomTree()
tree
""",
        (
            ".st-step >> nth=0",
            ".st-ask .st-step >> nth=0",
        ),
        "tree.path",
        "['My hook is not called', 'no']",
        ".st-step",
        ("Tab", "Enter"),
        "['My hook is called too often']",
        pane=False,
    ),
}
