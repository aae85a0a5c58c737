"""Change what flows through chosen layers, and say so where a change did not come about."""

from hookscope.edits.aim import at
from hookscope.edits.edit import Edit, edit
from hookscope.edits.reasons import NotEditedError

__all__ = ["Edit", "NotEditedError", "at", "edit"]
