"""Withhold the outputs that would answer an open question, and show them as soon as it is answered."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

WAITING = (
    "This output appears when the question is answered. Go on to the cell that compares your guess. If your guess was "
    "wrong, choose again there, or show the answer."
)
"""Stands below a cell whose output would tell the answer of an open question."""
_TEXT = "text/plain"


@dataclass
class _Output:
    """An output that is shown later, in the place of the display with this id."""

    display_id: str
    data: dict[str, Any]
    metadata: dict[str, Any]
    is_text: bool = False


class _WithheldText(io.StringIO):
    """Takes the text that a cell prints. A progress bar, which rewrites its line, goes to the page at once."""

    def __init__(self, page: Any) -> None:
        super().__init__()
        self._page = page

    def write(self, text: str) -> int:
        if "\r" not in text:
            return super().write(text)
        self._page.write(text)
        self._page.flush()
        return len(text)


@dataclass(repr=False)
class OutputGate:
    """Withholds the outputs of one kernel from a question on until its answer. Errors and progress bars appear at once.

    It goes through the message hooks of ipykernel. A kernel without them shows every output at once.

    """

    _question: str = ""
    _next_question: str = ""
    _waiting: dict[str, list[_Output]] = field(default_factory=dict)
    _of_cell: list[_Output] = field(default_factory=list)
    _lets_pass: bool = False
    _is_cell: bool = True
    _streams: tuple[Any, Any] | None = None
    _shell: Any = None

    def open_question(self, about: str) -> None:
        """Withhold the outputs of the cells below, up to the next question."""
        self._question, self._next_question = "", about
        if self._shell is None:
            self._register()

    def leave_question(self) -> None:
        """Show the outputs of the cells below. Outputs that wait for an answer go on waiting."""
        self._question = self._next_question = ""

    def let_pass(self) -> None:
        """Show the next output: it is the question itself."""
        self._lets_pass = self._question != ""

    def answer(self, about: str) -> None:
        """Show the outputs that wait for this question, each below its own cell."""
        if about in (self._question, self._next_question):
            self.leave_question()
        for output in self._waiting.pop(about, []):
            self._publish(output.data, output.metadata, output.display_id, update=True)

    def show(self, data: dict[str, Any], about: str) -> None:
        """Show something as soon as this question is answered."""
        self._lets_pass = False
        before, self._question = self._question, about
        self._publish(data, {})
        self._question = before

    # -- what ipykernel and IPython call ----------------------------------------------------------------------------

    def _register(self) -> None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        publishers = getattr(shell, "display_pub", None), getattr(shell, "displayhook", None)
        if shell is None or not all(hasattr(each, "register_hook") for each in publishers):
            return
        self._shell = shell
        for each in (shell.display_pub, shell.displayhook):
            each.register_hook(self._take_message)
        shell.events.register("pre_run_cell", self._begin_cell)
        shell.events.register("post_run_cell", self._end_cell)

    def _begin_cell(self, info: Any) -> None:
        self._of_cell, self._lets_pass = [], False
        self._is_cell = info.store_history  # the page also runs code of its own, beside the cells
        if self._question and self._is_cell and self._streams is None:
            self._streams = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = (_WithheldText(sys.stdout) for _ in range(2))

    def _end_cell(self, result: Any) -> None:
        texts = self._take_texts()
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            self._streams = None
        if not self._is_cell:
            return
        if result.success and self._question:
            self._keep_texts(texts)
        else:
            for stream, text in zip((sys.stdout, sys.stderr), texts, strict=True):
                stream.write(text)
        if not result.success and self._of_cell:  # what a cell showed before its error helps to find the error
            shown = {output.display_id for output in self._of_cell}
            for about, waiting in self._waiting.items():
                self._waiting[about] = [output for output in waiting if output.display_id not in shown]
            for output in self._of_cell:
                self._publish(output.data, output.metadata, output.display_id, update=True)
        if self._next_question:
            self._question, self._next_question = self._next_question, ""

    def _take_texts(self) -> tuple[str, ...]:
        """Return what the cell has printed since this was called last, on stdout and on stderr."""
        if self._streams is None:
            return "", ""
        texts = []
        for stream in (sys.stdout, sys.stderr):
            texts.append(stream.getvalue() if isinstance(stream, io.StringIO) else "")
            if isinstance(stream, io.StringIO):
                stream.seek(0)
                stream.truncate()
        return tuple(texts)

    def _keep_texts(self, texts: tuple[str, ...]) -> None:
        for text in filter(None, texts):
            last = self._of_cell[-1] if self._of_cell else None
            if last is not None and last.is_text:
                last.data[_TEXT] += text
            else:
                self._publish({_TEXT: text}, {})
                self._of_cell[-1].is_text = True

    def _take_message(self, message: dict[str, Any]) -> dict[str, Any] | None:
        content, kind = message["content"], message["header"]["msg_type"]
        if kind == "update_display_data":
            known = content.get("transient", {}).get("display_id")
            for output in (output for waiting in self._waiting.values() for output in waiting):
                if output.display_id == known:
                    output.data, output.metadata = content["data"], content["metadata"]
                    return None
        if not (self._question and self._is_cell) or kind not in ("display_data", "execute_result"):
            return message
        if self._lets_pass:
            self._lets_pass = False
            return message
        self._keep_texts(self._take_texts())
        known = content.get("transient", {}).get("display_id") or uuid4().hex
        self._keep(_Output(known, content["data"], content["metadata"] or {}))
        stands_for = (
            {_TEXT: WAITING, "text/markdown": f"*{WAITING}*"}
            if len(self._of_cell) == 1
            else {_TEXT: "", "text/html": ""}
        )
        self._lets_pass = True  # JupyterLab updates a display in its place, but not the result of a cell
        self._publish(stands_for, {}, known)
        return None

    def _keep(self, output: _Output) -> None:
        self._of_cell.append(output)
        self._waiting.setdefault(self._question, []).append(output)

    def _publish(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "", *, update: bool = False
    ) -> None:
        from IPython.display import publish_display_data

        transient = {"display_id": display_id} if display_id else {}
        publish_display_data(data, metadata, transient=transient, update=update)  # type: ignore[no-untyped-call]


gate = OutputGate()
"""The gate of this kernel."""
