"""Change what flows through chosen layers; an edit that did not happen is an error."""

from hookscope.edits.edit import Edit, edit
from hookscope.edits.report import NotEditedError
from hookscope.edits.selection import at

__all__ = ["Edit", "NotEditedError", "at", "edit"]
