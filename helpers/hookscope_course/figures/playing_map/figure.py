"""The map that plays: one call of a layer and the way back, with hooks that can be moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures.picture import Rows
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.playing_map.layout import place_map
from hookscope_course.figures.playing_map.one_layer import EFFECTS, MULTIPLIERS, PLACES, check_kind, record_runs
from hookscope_course.figures.playing_map.still import draw_map
from hookscope_course.practice.guess_results import ORDINALS, TRIES

__all__ = ["PlayingMap", "hook_pass"]

_BEGIN = {"forward_pre": "look", "forward": "multiply", "full_backward_pre": "look", "full_backward": "look"}
_QUIZ = ("forward_pre", "forward", "tensor_y", "full_backward_pre", "post_accumulate_grad", "full_backward")
# What is said at each station: if the hook there looks, and if it multiplies. The other stations have one sentence.
SENTENCES: dict[str, tuple[str, ...]] = {
    "call": ("You call the layer with x = {x}.",),
    "forward_pre": (
        "The forward pre-hook sees args = ({given},) before forward runs.",
        "The forward pre-hook is given args = ({given},) and returns {gave}. So forward gets {gave}.",
    ),
    "compute": ("forward computes weight · x = 2 · {given} = {gave}.",),
    "forward": (
        "The forward hook sees output = {given} after forward has run.",
        "The forward hook is given output = {given} and returns {gave}. From now on, that is the output.",
    ),
    "return": ("You get y = {y}.",),
    "start": ("You call y.backward(). The gradient of y with respect to itself is 1.",),
    "tensor_y": (
        "The tensor hook on y sees grad = {given}, the gradient of y.",
        "The tensor hook on y is given grad = {given} and returns {gave}. Every gradient after it grows with it.",
    ),
    "retain_grad": ("retain_grad asked torch to keep the gradient of y: y.grad = {gave}.",),
    "full_backward_pre": (
        "The full backward pre-hook sees grad_output = ({given},) before the layer's backward step.",
        "The full backward pre-hook is given grad_output = ({given},) and returns {gave}. Both gradients grow with it.",
    ),
    "step": ("The layer's backward step makes two gradients: {to_weight} for weight, and {to_input} for its input.",),
    "tensor_weight": (
        "The tensor hook on weight sees grad = {given} before it is added to weight.grad.",
        "The tensor hook on weight is given grad = {given} and returns {gave}, which will be added to weight.grad.",
    ),
    "accumulate": ("{given} is added to weight.grad.",),
    "post_accumulate_grad": (
        "The post-accumulate-grad hook is given weight, after weight.grad became {given}.",
        "The post-accumulate-grad hook changes weight.grad in place, from {given} to {gave}. Nothing else changes.",
    ),
    "full_backward": (
        "The full backward hook sees grad_input = ({given},). weight.grad is already there.",
        "The full backward hook is given grad_input = ({given},) and returns {gave}. Only x gets it: weight.grad is "
        "already there.",
    ),
    "tensor_x": (
        "The tensor hook on x sees grad = {given} before it is added to x.grad.",
        "The tensor hook on x is given grad = {given} and returns {gave}, which will be added to x.grad.",
    ),
    "end": ("The pass is over: y = {y}, x.grad = {x_grad}, weight.grad = {weight_grad}.",),
}
GIVEN = {
    "forward_pre": "args = ({given},)",
    "forward": "output = {given}",
    "tensor_y": "grad = {given}",
    "retain_grad": "y.grad = {given}",
    "full_backward_pre": "grad_output = ({given},)",
    "tensor_weight": "grad = {given}",
    "post_accumulate_grad": "weight.grad = {given}",
    "full_backward": "grad_input = ({given},)",
    "tensor_x": "grad = {given}",
}
"""The argument that each kind of hook looks at."""
CALLS = {
    "forward_pre": "module, args",
    "forward": "module, args, output",
    "tensor_y": "the gradient of y",
    "retain_grad": "",
    "full_backward_pre": "module, grad_output",
    "tensor_weight": "the gradient of weight",
    "post_accumulate_grad": "weight",
    "full_backward": "module, grad_input, grad_output",
    "tensor_x": "the gradient of x",
}
"""What torch calls each kind of hook with; `retain_grad` takes no hook."""
# Why a hook does not fire yet. Each is true whichever of the others is next, and none says which one that is.
WAITS = {
    "forward_pre": "The forward pre-hook fires before forward, at the beginning of the call.",
    "forward": "The forward hook is given the output, so it waits until forward has run.",
    "tensor_y": "The tensor hook on y is given the gradient of y. There is none before y.backward().",
    "retain_grad": "retain_grad stores the gradient of y when it is final, and it is not final yet.",
    "full_backward_pre": "The full backward pre-hook fires when the gradient enters the layer, and it has not come "
    "that far.",
    "tensor_weight": "The tensor hook on weight is given the gradient of weight, and the layer has not made it yet.",
    "post_accumulate_grad": "The post-accumulate-grad hook fires when weight.grad has been updated, and weight.grad is "
    "not there yet.",
    "full_backward": "The full backward hook fires when the gradient leaves the layer through its input, and it has "
    "not come that far.",
    "tensor_x": "The tensor hook on x is given the gradient of x, and it has not come that far.",
}

REPLIES = {
    "right": "Right, the {name}.",
    "again": "Not yet. {reason} Try again.",
    "told": "Not yet. {reason} It is the {name}.",
    "fired": "The {name} has fired already, and fires once in a pass.",
}
"""What is said to a guess; `fired` is the reason where no hook waits."""
FACTS = {
    "x": ("call", 0),
    "y": ("return", 0),
    "start": ("start", 0),
    "x_grad": ("end", 0),
    "weight_grad": ("post_accumulate_grad", 1),
    "y_grad": ("retain_grad", 0),
    "to_weight": ("tensor_weight", 0),
    "to_input": ("full_backward", 0),
}
"""The values that sentences and boxes name: the station, and what is taken there; 0 is given, 1 comes out."""


class PlayingMap(HookWidget):
    """Play one call of a layer and the way back: hooks fire as the value passes, and can be moved.

    The layer computes y = weight · x, with weight 2 and x = 3. Drag a hook to another place, or move it with the arrow
    keys; click it, or press Enter, to make it look or multiply by ten. The numbers are torch's own: all 256 choices of
    hooks that multiply are run when the first map is made, so the map works without a kernel, too.

    Args:
        hooks: what sits where: place → "look" or "multiply"; or only the places, and the hooks look.
        guess: ask which hook fires next, with a second try, until all have fired; from then on, hooks can be moved.
        kinds: the places that are shown; by default all nine.
        backward: show the way back.
        fixed: the hooks stay where they are.

    Attributes:
        hooks: as above. Setting it begins a new pass, or stays at the end of one, or begins the guesses again.
        index: the station at which the value is, from 0.
        guesses: what was chosen, for each hook in its turn.
        speed: how fast it plays; 1 is normal.

    Raises:
        ValueError: there is no such place or effect.

    Example:
        >>> play = PlayingMap({"forward": "multiply"})
        >>> play.step(2)
        'The forward hook is given output = 6 and returns 60. From now on, that is the output.'

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("hooks", "index", "guesses", quiet=("speed",))

    hooks: Any = traitlets.Dict().tag(sync=True)
    index: Any = traitlets.Int(0).tag(sync=True)
    guesses: Any = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    speed: Any = traitlets.Float(1.0).tag(sync=True)
    _guess: Any = traitlets.Bool(False).tag(sync=True)
    _begin: Any = traitlets.Dict().tag(sync=True)  # the hooks that are asked for; "Start over" puts them back
    _fixed: Any = traitlets.Bool(False).tag(sync=True)
    _kinds: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _order: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)  # of the stations
    _runs: Any = traitlets.List().tag(sync=True)  # of each run: given and gave at each station
    _words: Any = traitlets.Dict().tag(sync=True)
    _layouts: Any = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        hooks: Mapping[str, str] | Iterable[str] | None = None,
        *,
        guess: bool = False,
        kinds: Iterable[str] | None = None,
        backward: bool = True,
        fixed: bool = False,
    ) -> None:
        shown = [kind for kind in PLACES if backward or kind.startswith("forward")]
        if kinds is not None:
            wanted = {check_kind(kind, shown) for kind in kinds}
            shown = [kind for kind in shown if kind in wanted]
        if hooks is None:
            begin: Mapping[str, str] = dict.fromkeys(_QUIZ, "look") if guess else _BEGIN
            hooks = {kind: effect for kind, effect in begin.items() if kind in shown}
        elif not isinstance(hooks, Mapping):
            hooks = dict.fromkeys([hooks] if isinstance(hooks, str) else hooks, "look")
        order, runs = _table(backward)
        layouts = {
            name: place_map(set(shown), backward=backward, tray=not fixed, narrow=name == "narrow")
            for name in ("wide", "narrow")
        }
        words = _words(order, runs)
        super().__init__(
            _guess=guess, _fixed=fixed, _kinds=shown, _order=order, _runs=runs, _words=words, _layouts=layouts
        )
        self.hooks = hooks
        if not self.alt:
            self._draw()
        if guess:
            keep_state(self, "guesses", "hooks", "index")

    # What is where.

    def place(self, kind: str, effect: str = "look") -> None:
        """Put a hook in a place, or change what the one that is there does: "look" or "multiply"."""
        self.hooks = {**self.hooks, kind: effect}

    def move(self, kind: str, to: str) -> None:
        """Move a hook to another place that is free."""
        self._must_have(kind)
        if to in self.hooks:
            raise ValueError(f"there is a hook at {to!r} already; remove({to!r}) takes it away")
        effect = "look" if to == "retain_grad" else self.hooks[kind]
        self.hooks = {at: each for at, each in self.hooks.items() if at != kind} | {to: effect}

    def remove(self, kind: str) -> None:
        """Take a hook away."""
        self._must_have(kind)
        self.hooks = {at: effect for at, effect in self.hooks.items() if at != kind}

    def _must_have(self, kind: str) -> None:
        if kind not in self.hooks:
            raise ValueError(f"there is no hook at {kind!r}; there are hooks at: {', '.join(self.hooks) or 'no place'}")

    # Playing.

    def step(self, by: int = 1) -> str:
        """Go on by so many stations, or back, as far as there are any; return what has happened."""
        self.index = min(max(self.index + by, 0), self._limit())
        return self.sentence

    def choose(self, kind: str) -> str:
        """Guess which hook fires next, and go there if that is known now; return what the map answers."""
        if not self._guess:
            raise RuntimeError("this map asks nothing; PlayingMap(guess=True) does")
        turn, fires = self._known(), self._asked()
        if turn == len(fires):
            raise RuntimeError("every hook has fired; set guesses to [] to begin again")
        self._must_have(kind)
        guesses = [list(each) for each in self.guesses]
        guesses += [[]] if len(guesses) == turn else []
        guesses[turn].append(kind)
        self.guesses = guesses
        if self._known() > turn:  # the last one plays the pass to its end
            self.index = len(self.stations) - 1 if self._told() else self.stations.index(fires[turn])
        return self._verdict(turn)

    @property
    def stations(self) -> list[str]:
        """All stations of the pass, in their order: the hooks and what happens between them."""
        return [name for name in self._order if name not in PLACES or name in self.hooks]

    @property
    def order(self) -> list[str]:
        """The places of the hooks, in the order in which torch calls them."""
        return [name for name in self._order if name in self.hooks]

    @property
    def values(self) -> dict[str, float]:
        """What comes out at the end: y, x.grad, weight.grad, and y.grad if it is retained."""
        facts = self._facts()
        ends = {"y": "y", "x.grad": "x_grad", "weight.grad": "weight_grad"}
        found = {name: facts[key] for name, key in ends.items() if key in facts}
        return found | ({"y.grad": facts["y_grad"]} if "retain_grad" in self.hooks else {})

    @property
    def sentence(self) -> str:
        """What has just happened."""
        return self._say(self.stations[self.index])

    @property
    def score(self) -> tuple[int, int]:
        """How many hooks were guessed at the first try, and how many there are."""
        first = sum(tries[0] == kind for tries, kind in zip(self.guesses, self._asked(), strict=False) if tries)
        return first, len(self._asked())

    def _say(self, station: str) -> str:
        sentences: list[str] = self._words["sentences"][station]
        at = 1 if self.hooks.get(station) == "multiply" else 0
        given, gave = self._at(station)
        facts = {name: shorten(value) for name, value in self._facts().items()}
        return sentences[at].format(given=shorten(given), gave=shorten(gave), **facts)

    def _at(self, station: str) -> tuple[float, float]:
        run, place = self._runs[self._number()], 2 * self._order.index(station)
        return run[place], run[place + 1]

    def _number(self) -> int:
        return sum(1 << bit for bit, kind in enumerate(MULTIPLIERS) if self.hooks.get(kind) == "multiply")

    def _facts(self) -> dict[str, float]:
        return _facts(self._order, self._runs[self._number()])

    def _asked(self) -> list[str]:
        """The hooks that are asked for, in the order in which they fire; they stay when hooks are moved later."""
        return [name for name in self._order if name in self._begin]

    def _known(self) -> int:
        """Count the hooks whose turn is known: guessed, or told after `TRIES` wrong guesses."""
        known = 0
        for kind, tries in zip(self._asked(), self.guesses, strict=False):
            if kind not in tries and len(tries) < TRIES:
                break
            known += 1
        return known

    def _limit(self) -> int:
        stations = self.stations
        return len(stations) - 1 if self._told() else stations.index(self._asked()[self._known()]) - 1

    def _verdict(self, turn: int) -> str:
        fires, tries = self._asked()[turn], self.guesses[turn]
        has_fired = tries[-1] in self._asked()[:turn]
        reason = REPLIES["fired"].format(name=PLACES[tries[-1]].name) if has_fired else WAITS[tries[-1]]
        reply = "right" if tries[-1] == fires else "again" if len(tries) < TRIES else "told"
        said = REPLIES[reply].format(name=PLACES[fires].name, reason=reason)
        return said if reply == "again" else f"{said} {self._say(fires)}"

    # Checks.

    @traitlets.validate("hooks")
    def _check_hooks(self, proposal: Mapping[str, Any]) -> dict[str, str]:
        hooks = dict(proposal["value"])
        for kind, effect in hooks.items():
            check_kind(kind, self._kinds)
            if effect not in EFFECTS:
                raise ValueError(f"a hook can 'look' or 'multiply', and the one at {kind!r} is to {effect!r}")
            if kind not in MULTIPLIERS and effect == "multiply":
                raise ValueError("retain_grad takes no function, it keeps y.grad; use 'tensor_y' to change it")
        return {kind: hooks[kind] for kind in PLACES if kind in hooks}

    @traitlets.validate("index")
    def _check_index(self, proposal: Mapping[str, Any]) -> int:
        index = int(proposal["value"])
        if not 0 <= index < len(self._order):
            raise IndexError(f"index must be from 0 to {len(self.stations) - 1}, not {index}")
        return index

    @traitlets.observe("hooks")
    @show_errors
    def _begin_again(self, change: Mapping[str, Any]) -> None:
        """Stay at the end of a pass, so that one sees at once what became of it; else begin a new one."""
        before = [name for name in self._order if name not in PLACES or name in (change["old"] or {})]
        if "index" not in self._received:  # a page that moves a hook says itself where it is
            ended = self._told() and self.index >= len(before) - 1
            self.index = len(self.stations) - 1 if ended else 0
        if not self._told() or not self._begin:
            self._begin, self.guesses = dict(self.hooks), []
        if self._layouts:
            self._draw()

    @traitlets.observe("guesses")
    def _on_guesses(self, change: Mapping[str, Any]) -> None:
        if not self._told() and self.hooks != self._begin:
            self.hooks = self._begin
        self.index = min(self.index, self._limit())
        if self._layouts:
            self._draw()

    # The still picture, and words.

    def _told(self) -> bool:
        return not self._guess or self._known() == len(self._asked())

    def _draw(self) -> None:
        told = self._told()
        values = {name: shorten(value) for name, value in self._boxes().items()} if told else {}
        order = self.order if told else []
        hooks = {kind: (self.hooks[kind], order.index(kind) + 1 if order else 0) for kind in self.hooks}
        changed = self._changed() if told else set()
        layout = self._layouts["wide"] | ({} if told else {"rails": []})  # the arrows tell the order
        self.png = draw_map(layout, hooks, values, changed)
        names = [
            f"{PLACES[kind].name}{' (times ten)' if self.hooks[kind] == 'multiply' else ''}" for kind in self.hooks
        ]
        where = "A layer, y = weight · x, with weight 2 and x = 3."
        if told:
            ends = ", ".join(f"{name} = {shorten(value)}" for name, value in self.values.items())
            fire = f"Hooks fire in this order: {', '.join(names)}." if names else "It has no hooks."
            self.alt = f"{where} {fire} At the end {ends}."
        else:
            self.alt = f"{where} It has these hooks: {', '.join(sorted(names))}. Which one fires first?"

    def _boxes(self) -> dict[str, float]:
        facts = self._facts()
        return {name: facts[name] for name in ("x", "y", "start", "x_grad", "weight_grad") if name in facts}

    def _changed(self) -> set[str]:
        plain = _facts(self._order, self._runs[0])
        return {name for name, value in self._boxes().items() if value != plain[name]}

    def numbers(self) -> Rows:
        """List the hooks in the order in which they fire, with what each is given and gives, and what comes out."""
        if not self._told():
            return ()
        rows: list[dict[str, object]] = []
        for number, kind in enumerate(self.order, start=1):
            given, gave = self._at(kind)
            seen = GIVEN[kind].format(given=shorten(given))
            rows.append({"fires": number, "what": PLACES[kind].name, "is given": seen, "value after it": gave})
        return [*rows, *({"fires": None, "what": name, "value after it": each} for name, each in self.values.items())]

    def summary(self) -> str:
        """Say which hooks there are and what they do, and how far the pass is."""
        if not self._told():
            return f"PlayingMap: {self.alt} {self._known()} of {len(self.order)} are known."
        names = ", ".join(f"{PLACES[kind].name}: {self.hooks[kind]}" for kind in self.order) or "no hooks"
        return f"PlayingMap: {names}\nstation {self.index + 1} of {len(self.stations)}: {self.sentence}"


def hook_pass(*kinds: str, backward: bool = True) -> PlayingMap:
    """Return a small map that plays, with a hook in each of these places and no other place.

    Args:
        kinds: as `hookscope.record` names them, or as `PlayingMap` does: "tensor" is the tensor hooks on y and on x.
        backward: show the way back.

    Raises:
        ValueError: there is no such kind; names the nearest.

    Example:
        >>> hook_pass("forward_pre", "forward", backward=False).order
        ['forward_pre', 'forward']

    """
    shown = [each for kind in kinds for each in (("tensor_y", "tensor_x") if kind == "tensor" else (kind,))]
    return PlayingMap(shown, kinds=shown, backward=backward, fixed=True)


def shorten(value: float) -> str:
    """Write a value in four digits at most: 60, 2000, 2·10⁴."""
    if value < 10_000:
        return f"{value:g}"
    power = len(f"{value:.0f}") - 1
    return f"{value / 10**power:g}·10{str(power).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _table(backward: bool) -> tuple[list[str], list[list[float]]]:
    """Return all stations in their order, and for each run what is given and what comes out at each of them."""
    fired, runs = record_runs()
    forward = [name for name in fired if name in ("forward_pre", "compute", "forward")]
    order = ["call", *forward, "return"]
    if backward:
        order += ["start"]
        for name in fired[len(forward) :]:
            order += ["accumulate", name] if name == "post_accumulate_grad" else [name]
    order += ["end"]
    rows = []
    for run in runs:
        at = {event.at: (event.given, event.gave) for event in run.events}
        x = at["forward_pre"][0]
        at |= {"call": (x, x), "return": (run.y, run.y), "start": (at["tensor_y"][0],) * 2}
        at |= {"accumulate": (at["post_accumulate_grad"][0],) * 2, "end": (run.x_grad, run.x_grad)}
        rows.append([value for name in order for value in at[name]])
    return order, rows


def _facts(order: list[str], run: list[float]) -> dict[str, float]:
    """Return the values of a run that sentences and boxes name."""
    return {name: run[2 * order.index(at) + which] for name, (at, which) in _facts_of(order).items()}


def _facts_of(order: list[str]) -> dict[str, tuple[str, int]]:
    """Return where the values come from that a pass has; without a way back, x and y only."""
    return FACTS if "start" in order else {name: FACTS[name] for name in ("x", "y")}


def _words(order: list[str], runs: list[list[float]]) -> dict[str, Any]:
    """Return the sentences and tables that the page needs; the rules are in this file, and the page looks up."""
    sentences = {name: list(each) for name, each in SENTENCES.items()}
    if "start" not in order:
        sentences["end"] = ["The call is over: y = {y}."]
    return {
        "sentences": sentences,
        "facts": _facts_of(order),
        "texts": {f"{value:.0f}": shorten(value) for run in runs for value in run if shorten(value) != f"{value:g}"},
        "replies": REPLIES,
        "names": {kind: place.name for kind, place in PLACES.items()},
        "given": GIVEN,
        "waits": WAITS,
        "calls": {
            kind: f"The {PLACES[kind].name} is called with {given}." if given else "retain_grad calls nothing."
            for kind, given in CALLS.items()
        },
        "multipliers": list(MULTIPLIERS),
        "tries": TRIES,
        "ordinals": list(ORDINALS),
    }
