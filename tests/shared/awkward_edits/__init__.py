"""Thirty-two awkward edits: a model, an edit, and what has to come of it, computed without any tool.

`whole` is the same edit as a function of the whole tensor, for tools that take only that.
"""

# isort: off
from tests.shared.awkward_edits.case import CASES, EditCase

# Both enter their edits in CASES, in this order.
from tests.shared.awkward_edits import changing, refused
# isort: on

__all__ = ["CASES", "EditCase", "changing", "refused"]
