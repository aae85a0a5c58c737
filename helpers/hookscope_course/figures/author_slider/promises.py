"""What `AuthorSlider` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.author_slider.figure import AuthorSlider
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "AuthorSlider": Promises(
        lambda _: AuthorSlider("D4", "1.2.0"), {"document": "D0", "_at": 3}, refused=(("document", "D9", "D0, D1"),)
    ),
}

CONTROLS: dict[str, Controls] = {
    "AuthorSlider": Controls(
        "What the author would have seen",
        """
from hookscope_course.figures.author_slider.figure import AuthorSlider
author = AuthorSlider("D4", "1.2.0")
author
""",
        (),
        "author.document, author.release",
        "D4 1.2.0",
        "input[type=range]",
        ("ArrowLeft",),
        "D4 1.1.0",
        pane=False,
        alone=False,
    ),
}
