"""Change the values that flow through chosen layers; an edit that did not happen raises an error."""

from hookscope.interp.edits.edit import Edit, edit
from hookscope.interp.edits.explanation import explain_edit
from hookscope.interp.edits.report import NotEditedError
from hookscope.interp.edits.selection import at

__all__ = ["Edit", "NotEditedError", "at", "edit", "explain_edit"]
