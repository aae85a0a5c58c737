"""The travel map: guess what becomes of a hook at each station of its model, and travel there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import traitlets

from hookscope.pictures.colors import FORWARD, HOOK, INK, LINE, MUTED
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import Sheet
from hookscope_course.figures.travel_map.stations import ASKED, FATES, HOOKED, PLAIN, STATIONS, Fate, outcome_of
from hookscope_course.practice.feedback_card import Card

__all__ = ["TravelMap"]

# In the wide map, the row of each station, and whether it is left or right of the notebook.
_ROWS = {
    "deepcopy": (0, 0),
    "export": (0, 1),
    "prune": (1, 0),
    "compile": (1, 1),
    "state_dict": (2, 0),
    "quantize": (2, 1),
}
_LEGEND = {"same module object": True, "a new object": False}


class TravelMap(LazyFigure):
    """Guess what becomes of a hook at each station that its model comes to, and visit the stations.

    The hook multiplies by ten, and the model makes 6 without it and 60 with it. torch runs all stations when the map is
    made. The line to a station is dotted before the visit. After it, the line is blue if the hooked module stayed the
    same object, and gray if it is new.

    Attributes:
        guesses: what you expect at each station: "follows", "stays", "left" or "baked".
        visited: the stations whose outcome the map shows.
        at: the station that is chosen.

    Raises:
        ValueError: there is no such station or fate; or the guess for a visited station would change.

    Example:
        >>> journey = TravelMap()
        >>> journey.guesses = {"state_dict": "stays"}
        >>> journey.visit("state_dict").kind
        'wrong'

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("guesses", "visited", "at")

    guesses: Any = traitlets.Dict().tag(sync=True)
    visited: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    at: Any = traitlets.Unicode(next(iter(STATIONS))).tag(sync=True)
    _data: Any = traitlets.Dict().tag(sync=True)

    def __init__(self) -> None:
        self._outcomes = {name: outcome_of(name) for name in STATIONS}
        stations = [
            {"name": name, "code": station.code, "does": station.does, "why": station.why, "same": station.is_same}
            | {"sees": station.sees}
            | self._outcomes[name]._asdict()
            | {"fate": self._outcomes[name].fate}
            for name, station in STATIONS.items()
        ]
        fates = [{"name": name, "short": short, "long": long} for name, (short, long) in FATES.items()]
        super().__init__(
            _data={
                "stations": stations,
                "fates": fates,
                "hooked": HOOKED,
                "plain": PLAIN,
                "legend": [*_LEGEND.items()],
                "wide": place_stations(),
                "narrow": place_stations(narrow=True),
            }
        )
        self._tell()
        keep_state(self, "guesses", "visited", "at")

    def visit(self, *stations: str) -> Card:
        """Travel to stations, and say what became of the hook there; the map shows it, too."""
        known = [_check(name, STATIONS, "station") for name in stations]
        self.visited = [*self.visited, *(name for name in known if name not in self.visited)]
        if known:
            self.at = known[-1]
        guesses = [self.guesses.get(name) for name in known if name in ASKED]
        wrong = any(name in self.guesses and name not in self.right for name in known)
        kind: Literal["wrong", "right", "note"] = "right" if guesses and all(guesses) else "note"
        quoted = [f"`{name}`" for name in known]
        where = " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
        said = [self._reason(name) for name in known]
        if len(known) == 1:
            return Card(f"You are at {where}:", f"{said[0]}\n\n{self._list_stations()}", "wrong" if wrong else kind)
        lines = [f"- `{name}`: {words}" for name, words in zip(known, said, strict=True)]
        # One sign for several stations would be wrong for some of them; each line says it.
        text = "\n" + "\n".join(lines) + f"\n\n{self._list_stations()}"
        return Card(f"You have been at {where}.", text, "note" if wrong else kind)

    def _list_stations(self) -> str:
        """The map in a line or two, for a card far below it."""
        been = "; ".join(f"`{name}`: {FATES[self._outcomes[name].fate][0]}" for name in self.visited)
        ahead = ", ".join(f"`{name}`" for name in STATIONS if name not in self.visited)
        return f"Your map: {been}." + (f" Not visited yet: {ahead}." if ahead else "")

    def _reason(self, name: str) -> str:
        found, guess = self._outcomes[name], self.guesses.get(name)
        fate = FATES[found.fate][0]
        if guess:
            fate += ", as you guessed" if guess == found.fate else f", not as you guessed ({FATES[guess][0]})"
        if sees := STATIONS[name].sees:
            return f"{fate}; {sees}."
        calls = f"{found.calls} call{'' if found.calls == 1 else 's'} of the hook"
        return f"{fate}. It returns {found.returns}, with {calls}, and {found.after} after `handle.remove()`."

    @property
    def right(self) -> list[str]:
        """The visited stations that were guessed right."""
        return [name for name in self.visited if self.guesses.get(name) == self._outcomes[name].fate]

    @traitlets.validate("guesses")
    def _check_guesses(self, proposal: Mapping[str, Any]) -> dict[str, Fate]:
        guesses: dict[str, Fate] = {}
        for name, fate in proposal["value"].items():
            if _check(name, STATIONS, "station") not in ASKED:
                raise ValueError(f"the chapter asks about {name!r}, and the map does not")
            guesses[name] = _check(fate, FATES, "fate")
        for name in self.visited:
            if guesses.get(name) != self.guesses.get(name):
                raise ValueError(f"{name!r} was visited, so its guess stays; a new TravelMap() begins again")
        return guesses

    @traitlets.validate("visited")
    def _check_visited(self, proposal: Mapping[str, Any]) -> list[str]:
        return list(dict.fromkeys(_check(name, STATIONS, "station") for name in proposal["value"]))

    @traitlets.validate("at")
    def _check_at(self, proposal: Mapping[str, Any]) -> str:
        return str(_check(proposal["value"], STATIONS, "station"))

    @traitlets.observe("guesses", "visited")
    def _tell(self, change: object = None) -> None:
        if not self._data:
            return
        where = " ".join(f"{name}: {STATIONS[name].does}" for name in STATIONS)
        told = [self._told(name) for name in self.visited]
        self.alt = f"A map of lines. From the notebook, where the hook is, a line goes to each station. {where} " + (
            f"Visited: {'; '.join(told)}." if told else "No station is visited yet."
        )

    def _told(self, name: str) -> str:
        found, guess = self._outcomes[name], self.guesses.get(name)
        if sees := STATIONS[name].sees:
            return f"{name}: {FATES[found.fate][0]} ({sees})"
        calls = f"{found.calls} call{'' if found.calls == 1 else 's'}"
        said = f"{name}: {FATES[found.fate][0]} (returns {found.returns}, {calls}; {found.after} after handle.remove())"
        return f"{said}; your guess: {FATES[guess][0]}" if guess else said

    def summary(self) -> str:
        """Say how far the journey went, and what became of the hook at each visited station."""
        guessed = sum(name in self.guesses for name in self.visited)
        head = f"The travel map: {len(self.visited)} of {len(STATIONS)} stations visited"
        head += f", {len(self.right)} of {guessed} guesses right" if guessed else ""
        return "\n".join([head, *(self._told(name) for name in self.visited)])

    def numbers(self) -> Rows:
        """List what each visited station did to the hook; the others have question marks."""
        rows: list[dict[str, object]] = []
        for name in STATIONS:
            found = self._outcomes[name] if name in self.visited else None
            guess = self.guesses.get(name)
            rows.append(
                {
                    "station": name,
                    "your guess": FATES[guess][0] if guess else "",
                    "the hook": FATES[found.fate][0] if found else "?",
                    "returns": found.returns if found else "?",
                    "calls": found.calls if found else "?",
                    "after remove": found.after if found else "?",
                }
            )
        return rows

    def _still(self) -> bytes:
        return _draw(self)


def _check(name: Any, known: Mapping[Any, object], what: str) -> Any:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; there are: {', '.join(known)}")
    return name


def _short(guess: Fate, fate: Fate) -> str:
    """Name a guess beside what holds, so that both fit on a card."""
    name = FATES[guess][0].removeprefix("only ").removesuffix(" stays").removesuffix(" behind")
    return name.removeprefix("fires, ") if FATES[fate][0].startswith("fires, ") else name


def place_stations(*, narrow: bool = False) -> dict[str, Any]:
    """Say where things are: the size, the letters, each card as x, y, width, height, and each way to a station.

    Args:
        narrow: for a phone, one card below the other.

    """
    if narrow:
        wide, high, gap = 320, 80, 10
        home = [28, 4, wide, high]
        places = {name: [28, 4 + (at + 1) * (high + gap), wide, high] for at, name in enumerate(STATIONS)}
        paths = {name: [[12, 44], [12, y + high / 2], [x, y + high / 2]] for name, (x, y, _, _) in places.items()}
        size = [352, 8 + (len(places) + 1) * (high + gap)]
        return {"size": size, "font": 13, "home": home, "cards": places, "ways": paths, "legend": None}
    wide, high, tops = 310, 80, (4, 92, 180)
    home = [366, tops[1], 112, high]
    middle = home[0] + home[2] / 2
    cards: dict[str, list[float]] = {}
    ways: dict[str, list[list[float]]] = {}
    low, bus, third = 278, 269, 270  # the three in training stand side by side below the others
    for at, name in enumerate(name for name in STATIONS if name not in _ROWS):
        x = 4 + at * (third + 13)
        cards[name] = [x, low, third, high]
        down = [] if x + third / 2 == middle else [[middle, bus], [x + third / 2, bus]]
        ways[name] = [[middle, home[1] + high], *down, [x + third / 2, low]]
    for name, (row, side) in _ROWS.items():
        x, door = (530, 530) if side else (4, 4 + wide)
        cards[name] = [x, tops[row], wide, high]
        level = tops[row] + high / 2
        leave = [middle, home[1] if row == 0 else home[1] + high]
        start = [leave, [middle, level]] if row != 1 else [[home[0] + side * home[2], level]]
        ways[name] = [*start, [door, level]]
    return {
        "size": [844, 392],
        "font": 13,
        "home": home,
        "cards": cards,
        "ways": ways,
        "legend": [[196, 378], [470, 378]],
    }


def _draw(journey: TravelMap) -> bytes:
    layout = place_stations()
    sheet = Sheet.open(layout["size"], dpi=150)
    points = 0.72 * layout["font"]
    blue = {name for name in journey.visited if STATIONS[name].is_same}
    for name in sorted(layout["ways"], key=lambda name: name in blue):  # the blue line is on top
        color, style = FORWARD if name in blue else LINE, "-" if name in journey.visited else ":"
        sheet.line(layout["ways"][name], color=color, linestyle=style, linewidth=4, zorder=1)
    for (x, y), (text, same) in zip(layout["legend"], _LEGEND.items(), strict=True):
        sheet.line([(x, y), (x + 40, y)], color=FORWARD if same else LINE, linewidth=4)
        sheet.write([x + 52, y], text, points, MUTED, ha="left")

    def card(box: Sequence[float], lines: Sequence[tuple[str, dict[str, Any]]], fate: str | None, edge: str) -> None:
        x, y, w, h = box
        sheet.panel(x, y, w, h, rounding=10, facecolor="white", edgecolor=edge, linewidth=1.5, zorder=2)
        for at, (text, look) in enumerate(lines):
            sheet.write([x + 10, y + 18 + 20 * at], text, **({"size": points, "ha": "left"} | look))
        if fate is None:
            return
        px, py = x + w - 24, y + 20
        is_on = fate in ("follows", "stays")
        look = {"facecolor": HOOK, "edgecolor": HOOK} if is_on else {"facecolor": "white", "edgecolor": LINE}
        if fate == "baked":
            sheet.box(px, py, 28, 18, rounding=0, facecolor="white", edgecolor=INK, linewidth=2.4, zorder=3)
        else:
            sheet.circle([px, py], 13, linewidth=1.4, linestyle="-" if is_on else "--", zorder=3, **look)
        if fate != "left":
            sheet.write([px, py], "×10", 0.8 * points, "white" if is_on else INK, weight="bold")
        if is_on:
            style = "-" if fate == "follows" else ":"
            sheet.line([(px - 26, py), (px - 13, py)], color=HOOK, linewidth=2, linestyle=style, zorder=3)
            fill = HOOK if fate == "follows" else "white"
            sheet.circle([px - 31, py], 5, facecolor=fill, edgecolor=HOOK, linewidth=1.4, zorder=3)

    bold: dict[str, Any] = {"weight": "bold", "size": 1.1 * points}
    small: dict[str, Any] = {"color": MUTED, "size": 0.9 * points}
    home = [("notebook", bold), ("hook ×10", {}), (f"returns {HOOKED},", small), (f"without it {PLAIN}", small)]
    card(layout["home"], home, None, FORWARD)
    for name, station in STATIONS.items():
        lines = [(name, bold), (station.code, {**small, "family": "monospace", "size": 0.82 * points})]
        guess, fate = journey.guesses.get(name), None
        if name in journey.visited:
            found = journey._outcomes[name]
            fate = found.fate
            sign = "" if not guess else " ✓" if guess == fate else f" · you: {_short(guess, fate)}"
            lines += [(FATES[fate][0] + sign, {"weight": "bold"})]
            numbers = f"returns {found.returns} · called {found.calls}× · {found.after} after remove()"
            lines += [(station.sees or numbers, small)]
        else:
            lines += [(f"your guess: {FATES[guess][0]}" if guess else "?", small)]
        card(layout["cards"][name], lines, fate, FORWARD if name in blue else LINE)
    return sheet.png(journey.alt)
