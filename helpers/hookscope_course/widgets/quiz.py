"""Guess the order in which the hooks of a recording fired, then compare with the recorded order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures.picture import Rows, Table, from_figure
from hookscope.pictures.tokens import shorten_token
from hookscope.recordings.record import Recording
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope.widgets.player import draw_events, select_events
from hookscope_course.widgets.order_reasons import explain_order

__all__ = ["OrderQuiz"]

FOLDER = Path(__file__).parent


_MOST = 40  # most events; more are tedious to order


class OrderQuiz(HookWidget):
    """Put the hooks of a recording in the order in which you expect them to fire, then reveal the recorded order.

    The page does not contain the order before you reveal it. Events with the same name count as equal. In Python, set
    `answer` to a list of names; `reveal()` returns the comparison, and `start_over()` clears it.

    Args:
        recording: the result of `record(...)`, after its block.
        seed: shuffles the names. The same seed gives the same order.
        kinds: ask only for events of these kinds, for example `["full_backward_pre", "full_backward"]`.
        layers: ask only for events of these layers or tensors: names, or globs. The root is `"(root)"`.

    Raises:
        TypeError: `recording` is not a recording, or `seed` is not an integer.
        ValueError: there are too few or too many events, or `answer` has a wrong name.
        LayerNotFoundError: a layer has no events.

    Example:
        >>> import torch, hookscope
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> with hookscope.record(model) as recording:
        ...     y = model(torch.ones(1, 4))
        >>> quiz = OrderQuiz(recording, kinds="forward")
        >>> quiz.answer = ["forward 0", "forward (root)"]
        >>> quiz.reveal().caption
        "All 2 right: this is torch's own order."

    """

    _esm, _css = assets(FOLDER / "quiz")

    answer: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    revealed: Any = traitlets.Bool(False).tag(sync=True)
    _cards: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)  # the names, shuffled
    _result: Any = traitlets.Dict().tag(sync=True)  # empty until revealed

    def __init__(
        self,
        recording: Recording,
        seed: int = 0,
        kinds: str | Iterable[str] | None = None,
        layers: str | Iterable[str] | None = None,
    ) -> None:
        events = select_events(recording, kinds, layers)
        if not isinstance(seed, int):
            raise TypeError(f"seed must be an integer, not {type(seed).__name__}")
        if len(events) > _MOST:
            raise ValueError(f"{len(events)} events are too many to order, {_MOST} at most. Pass kinds= or layers=")
        self._recording, self._events = recording, events
        names = [event.label for event in events]
        if len(set(names)) < 2:
            raise ValueError(f"there is no order to guess: all events are {names[0]!r}. Choose more kinds or layers")
        cards = names[:]
        shuffle = random.Random(seed).shuffle
        while cards == names:
            shuffle(cards)
        super().__init__(_cards=cards)
        self._show_question()

    @property
    def order(self) -> list[str]:
        """The names in the order in which the hooks fired. Available after `reveal()`."""
        self._check_revealed("order")
        return [event.label for event in self._events]

    @property
    def score(self) -> int:
        """The number of right names before the first difference. Available after `reveal()`."""
        self._check_revealed("score")
        return self._count_right()

    @property
    def explanation(self) -> str:
        """The reason for the order at the first difference. Available after `reveal()`."""
        self._check_revealed("explanation")
        return self._explain_difference()

    def reveal(self) -> Table:
        """Show the recorded order; return it next to the answer, as a table."""
        self.revealed = True
        return self._make_table()

    def start_over(self) -> None:
        """Hide the order again, and clear the answer."""
        with self.hold_trait_notifications():
            self.revealed = False
            self.answer = []

    @traitlets.validate("answer")
    def _check_answer(self, proposal: Mapping[str, Any]) -> list[str]:
        answer = list(proposal["value"])
        if self.revealed and answer != self.answer:
            raise ValueError("the order is revealed, so the answer cannot change. Call start_over() to begin again")
        left = Counter(self._cards)
        for name in answer:
            if left[name] == 0:
                problem = f"{name!r} is placed more often than it fired" if name in left else f"no event {name!r}"
                raise ValueError(f"{problem}. The names to place are {', '.join(map(repr, self._cards))}")
            left[name] -= 1
        return answer

    @traitlets.observe("revealed")
    @show_errors
    def _on_revealed(self, change: Mapping[str, Any]) -> None:
        if not self.revealed:
            self._result = {}
            self._show_question()
            return
        rows = [[row["you"], row["torch"], row["mark"]] for row in self._list_rows()]
        self._result = {"rows": rows, "verdict": self._write_verdict(), "why": self._explain_difference()}
        self.png, self.alt = draw_events(self._events)

    def numbers(self) -> Rows:
        """List the answer next to the recorded order. Empty before `reveal()`."""
        return self._list_rows() if self.revealed else ()

    def summary(self) -> str:
        """Describe the question and the answer so far, or the result after `reveal()`."""
        if self.revealed:
            return f"OrderQuiz: {self._make_table()!r}"
        placed = "".join(f"\n{place}. {name}" for place, name in enumerate(self.answer, 1)) or " nothing yet"
        return f"OrderQuiz: put {len(self._cards)} events in order: {', '.join(self._cards)}\nplaced:{placed}"

    def _check_revealed(self, what: str) -> None:
        if not self.revealed:
            raise RuntimeError(f"the {what} is hidden until you have guessed. Then call reveal(), or press Reveal")

    def _count_right(self) -> int:
        pairs = zip(self.answer, self._events, strict=False)
        return next((at for at, (name, event) in enumerate(pairs) if name != event.label), len(self.answer))

    def _list_rows(self) -> list[dict[str, object]]:
        right, rows = self._count_right(), []
        for place, event in enumerate(self._events):
            name = self.answer[place] if place < len(self.answer) else ""
            first = "first difference" if place == right else "differs"
            mark = "missing" if not name else "same" if name == event.label else first
            rows.append({"#": place + 1, "you": name, "torch": event.label, "mark": mark})
        return rows

    def _make_table(self) -> Table:
        return Table(self._list_rows(), "\n".join(filter(None, [self._write_verdict(), self._explain_difference()])))

    def _write_verdict(self) -> str:
        right, size = self._count_right(), len(self._events)
        if right == size:
            return f"All {size} right: this is torch's own order."
        fired = f"torch fired {self._events[right].label}"
        if not self.answer:
            return f"You placed none of {size}. At position 1 {fired}."
        if right == len(self.answer):
            return f"{right} of {size} right, then you stopped. At position {right + 1} {fired}."
        difference = f"At position {right + 1} you said {self.answer[right]}, but {fired}."
        if right == 0:
            return f"The first of {size} is not right yet. {difference}"
        return f"The first {f'{right} of {size} are' if right > 1 else f'of {size} is'} right. {difference}"

    def _explain_difference(self) -> str:
        right = self._count_right()
        if right >= len(self.answer):
            return ""
        later = next(event for event in self._events[right:] if event.label == self.answer[right])
        return explain_order(self._events[right], later, self._recording.events, self._recording.notes)

    def _show_question(self) -> None:
        self.png, self.alt = _draw_question(self._cards)


def _draw_question(cards: Sequence[str]) -> tuple[bytes, str]:
    """Draw the names in shuffled order; return PNG and alt text."""
    alt = f"In which order do these {len(cards)} hooks fire? Shuffled: {', '.join(cards)}."
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return b"", alt
    columns = 1 if len(cards) < 4 else 2
    deep = -(-len(cards) // columns)
    figure = Figure(figsize=(7, 0.6 + 0.36 * deep))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, columns)
    axes.set_ylim(deep + 0.2, -1.2)
    axes.text(0.03, -0.6, f"In which order do these {len(cards)} hooks fire?", fontsize=12, va="center")
    for place, name in enumerate(cards):
        text = shorten_token(name, 40)
        box = {"boxstyle": "round", "facecolor": "0.95", "edgecolor": "0.4"}
        axes.text(place // deep + 0.05, place % deep + 0.3, text, va="center", parse_math=False, bbox=box)
    picture = from_figure(figure, alt, dpi=100)
    return picture.png, picture.alt
