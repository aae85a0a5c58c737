"""The models in the sealed boxes: four small layers, hooks on each of them, and one mistake in one place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope

__all__ = ["BOXES", "LAYERS", "MISTAKES", "QUESTIONS", "Box", "Mistake", "Puzzle"]

LAYERS = ("stem", "mix", "gate", "head")
# Between two layers stands a ReLU. Each layer returns a number below 0 and one above, whatever its place.
_WEIGHTS = (((1, 2), (1, -2)), ((2, 1), (-1, 1)), ((1, 1), (-1, 2)), ((3, 1), (-1, 1)))
_INPUT = ((1.0, 2.0),)
_Rows: TypeAlias = list[dict[str, object]]


@dataclass(frozen=True)
class Mistake:
    """What can be wrong with a layer.

    Attributes:
        name: how it is chosen.
        code: the lines that make the mistake; `LAYER` stands for the name of the layer.
        cure: what to write instead.

    """

    name: str
    code: str
    cure: str


_NEVER = Mistake(
    "it is never called",
    "x = F.linear(x, self.LAYER.weight)  # in forward",
    "Write self.LAYER(x). F.linear uses the weight but does not call the layer.",
)
_NO_HOOK = Mistake(
    "it has no hook",
    "for layer in layers:  # model.LAYER is missing in this list\n    layer.register_forward_hook(note)",
    "Register the hook in a loop over model.children(), so that you do not miss a layer.",
)
_THREE_HOOKS = Mistake(
    "its hook is registered three times",
    "model.LAYER.register_forward_hook(note)  # this cell was run three times",
    "Write with model.LAYER.register_forward_hook(note): and run the model inside this block.",
)
_THREE_CALLS = Mistake(
    "it is called three times",
    "for _ in range(3):  # in forward\n    x = self.LAYER(x)",
    "The hook is right here. The model calls this layer three times in one pass.",
)
_RETURNS = Mistake(
    "its forward hook returns a value",
    "def look(module, args, output):\n    return 2 * output",
    "A hook that only watches must not return a value.",
)
_PRE_RETURNS = Mistake(
    "its pre-hook returns a value",
    "def look_before(module, args):\n    return (args[0] + 1,)",
    "A pre-hook that only watches must not return a value.",
)
_OVERWRITTEN = Mistake(
    "a later step overwrites its output",
    "kept['LAYER'] = output.detach()  # the hook\nx = F.relu(x, inplace=True)  # in forward, after LAYER",
    "Keep output.detach().clone().",
)
_KEEPS_INPUT = Mistake(
    "its hook is a pre-hook",
    "def keep(module, args):\n    kept['LAYER'] = args[0].detach().clone()\n\n"
    "model.LAYER.register_forward_pre_hook(keep)",
    "Use register_forward_hook. A pre-hook is called with the input.",
)
MISTAKES = (_NEVER, _NO_HOOK, _THREE_HOOKS, _THREE_CALLS, _RETURNS, _PRE_RETURNS, _OVERWRITTEN, _KEEPS_INPUT)
_BY_KIND = dict(
    zip(("never", "no hook", "hooks", "calls", "returns", "pre", "overwritten", "input"), MISTAKES, strict=True)
)

QUESTIONS = {
    "census": "Which hooks does each layer have?",
    "record": "Which hooks fire, and in which order?",
    "capture": "How often is each layer called? Is its output overwritten later?",
    "compare": "What are the inputs and outputs of each layer, with and without the hooks?",
}


class _Stages(nn.Module):
    """Four Linear layers, each followed by a ReLU; a box can change how one of them is called."""

    def __init__(self, layer: str, way: str) -> None:
        super().__init__()
        self._treated, self._way = layer, way
        for name, weight in zip(LAYERS, _WEIGHTS, strict=True):
            linear = nn.Linear(2, 2, bias=False)
            linear.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float32), requires_grad=False)
            self.add_module(name, linear)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.named_children():
            way = self._way if name == self._treated else ""
            if way == "never":
                x = F.linear(x, layer.get_parameter("weight"))
            else:
                for _ in range(3 if way == "calls" else 1):
                    x = layer(x)
            x = F.relu(x, inplace=way == "overwritten")
        return x


@dataclass(frozen=True)
class Box:
    """A box: what its owner did, what she saw, and which mistakes can be behind it."""

    title: str
    told: str
    kinds: tuple[str, ...]
    see: Callable[[Puzzle], str]

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """What can be wrong in this box."""
        return tuple(_BY_KIND[kind] for kind in self.kinds)


@dataclass
class Puzzle:
    """A sealed model.

    Args:
        box: what its owner tells.
        layer: where the mistake is.
        kind: which mistake it is, one of `box.kinds`.
        seal: a learner's function, which registers all hooks instead.

    Attributes:
        notes: the name of the layer, for each time that a hook of the owner was called.
        kept: what the owner's hooks kept, by layer.

    """

    box: Box
    layer: str
    kind: str
    seal: Callable[[nn.Module], object] | None = None
    notes: list[str] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = _Stages(self.layer, self.kind)
        if self.seal:
            self.seal(self.model)
            return
        for name, layer in self.model.named_children():
            self._put_on(name, layer, self.kind if name == self.layer else "")

    @property
    def mistake(self) -> Mistake:
        """What is wrong."""
        return _BY_KIND[self.kind]

    def _put_on(self, name: str, layer: nn.Module, kind: str) -> None:
        def note(module: nn.Module, args: Any, output: Tensor) -> None:
            self.notes.append(name)

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            self.kept[name] = output.detach()

        def keep_input(module: nn.Module, args: Any) -> None:
            self.kept[name] = args[0].detach().clone()

        def look(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            return 2 * output if kind == "returns" else None

        def look_before(module: nn.Module, args: Any) -> Any:
            return (args[0] + 1,) if kind == "pre" else None

        keep_input.__qualname__ = keep_input.__name__ = "keep"  # its owner takes it for the same hook
        if "returns" in self.box.kinds:
            layer.register_forward_pre_hook(look_before)
            layer.register_forward_hook(look)
        elif kind == "input":
            layer.register_forward_pre_hook(keep_input)
        elif "input" in self.box.kinds:
            layer.register_forward_hook(keep)
        else:
            for _ in range({"no hook": 0, "hooks": 3}.get(kind, 1)):
                layer.register_forward_hook(note)

    def run(self, x: Tensor | None = None) -> Tensor:
        """Run the model once, as its owner does; without `x`, on her input."""
        self.notes.clear()
        self.kept.clear()
        with torch.no_grad():
            output: Tensor = self.model(torch.tensor(_INPUT) if x is None else x)
        return output

    def symptom(self) -> str:
        """What the owner sees in one pass."""
        return f"{self.box.told} {self.box.see(self)}"

    def answer(self, question: str) -> list[dict[str, object]]:
        """Ask one of the four questions: a table, from the tools of hookscope."""
        rows: list[dict[str, object]] = getattr(self, f"_{question}")()
        return rows

    def explain(self, layer: str, mistake: Mistake) -> str:
        """Say what speaks against a wrong guess: the symptom, or an answer that this box does not give."""
        if mistake not in self.box.mistakes:
            title = next(box.title for box in BOXES if mistake in box.mistakes)
            return f"You can see this from the symptom: this mistake leads to “{title}”."
        guess = Puzzle(self.box, layer, self.box.kinds[self.box.mistakes.index(mistake)])
        answers = ((each, _rows_of(guess, each, layer), _rows_of(self, each, layer)) for each in QUESTIONS)
        apart = list(itertools.islice((answer for answer in answers if answer[1] != answer[2]), 2))
        question, expected, found = apart[0]
        names = " and ".join(f"`{each}`" for each, _, _ in apart)
        return (
            f"{names} {'tells' if len(apart) == 1 else 'tell'} your guess and this box apart. With your guess, "
            f"`{question}` shows {_describe(expected, found)} for `{layer}`. "
            f"In this box it shows {_describe(found, expected)}."
        )

    def find_difference(self, other: Puzzle, question: str) -> tuple[str, str, str] | None:
        """Return the first layer for which two boxes answer differently, and what each shows; names of hooks aside."""
        for layer in LAYERS:
            mine, others = (
                [{column: cell for column, cell in row.items() if column != "hook"} for row in rows]
                for rows in (_rows_of(self, question, layer), _rows_of(other, question, layer))
            )
            if mine != others:
                return layer, _describe(mine, others), _describe(others, mine)
        return None

    def _census(self) -> list[dict[str, object]]:
        entries = hookscope.census(self.model, include_global=False)
        return [{"layer": e.layer, "kind of hook": e.kind, "hook": e.callable.rpartition(".")[2]} for e in entries]

    def _events(self) -> list[Any]:
        with hookscope.record(self.model, kinds=("forward_pre", "forward"), values=True) as log:
            self.run()
        return [event for event in log.events if event.name]

    def _record(self) -> list[dict[str, object]]:
        fired = [event for event in self._events() if event.hook]
        return [
            {"#": at, "layer": e.name, "call": e.call, "hook": e.hook.rpartition(".")[2], "kind": e.kind}
            for at, e in enumerate(fired, 1)
        ]

    def _capture(self) -> list[dict[str, object]]:
        with hookscope.capture(self.model, "*") as seen:
            self.run()
        return [
            {
                "layer": name,
                "calls": seen.order.count(name),
                "output overwritten later": "yes" if name in seen.overwritten else "no",
            }
            for name in LAYERS
        ]

    def _compare(self) -> list[dict[str, object]]:
        bare = Puzzle(self.box, self.layer, self.kind, self.seal)
        hookscope.census(bare.model, include_global=False).remove_all()
        with_hooks, without = self._flow(), bare._flow()
        rows: list[dict[str, object]] = []
        for name in LAYERS:
            row: dict[str, object] = {"layer": name}
            for way, column in (("given", "input"), ("returned", "output")):
                before, after = without.get((name, way), "–"), with_hooks.get((name, way), "–")
                row[f"{column}, without hooks"], row[f"{column}, with hooks"] = before, after
            rows.append(row)
        return rows

    def _flow(self) -> dict[tuple[str, str], str]:
        """What goes into each layer and comes out of it, in its last call."""
        flow = {}
        for event in self._events():
            way = "given" if event.kind == "forward_pre" else "returned"
            value = event.values[0] if way == "given" else event.values
            flow[event.name, way] = _numbers(value)  # the last look is that of the recorder, behind all hooks
        return flow


def _rows_of(puzzle: Puzzle, question: str, layer: str) -> _Rows:
    """The part of an answer that is about one layer, without the numbers of the rows."""
    rows = (row for row in puzzle.answer(question) if row["layer"] == layer)
    return [{column: value for column, value in row.items() if column not in ("#", "layer")} for row in rows]


def _describe(rows: _Rows, others: _Rows) -> str:
    """How many rows there are, or, if there are as many in the other answer, the first cell that differs."""
    if len(rows) != len(others):
        return f"{len(rows) or 'no'} row{'' if len(rows) == 1 else 's'}"
    row, other = next(pair for pair in zip(rows, others, strict=True) if pair[0] != pair[1])
    column, value = next(cell for cell in row.items() if other[cell[0]] != cell[1])
    return f"“{column}: {value}”"


def _numbers(value: Tensor) -> str:
    return ", ".join(f"{number:g}" for number in value.flatten().tolist())


def _count(puzzle: Puzzle) -> str:
    puzzle.run()
    many = len(puzzle.notes)
    return f"One pass gives {many} notes. She expected 4."


def _result(puzzle: Puzzle) -> str:
    with_hooks, without = _numbers(puzzle.run()), _numbers(_Stages("", "")(torch.tensor(_INPUT)))
    return f"Without the hooks, the model returns {without}. With them, it returns {with_hooks}."


def _keeping(puzzle: Puzzle) -> str:
    puzzle.run()
    return "One of the four kept values is wrong. The result of the model is right."


BOXES = (
    Box("Too few notes", "Her hooks write a note for each of the four layers.", ("never", "no hook"), _count),
    Box("Too many notes", "Her hooks write a note for each of the four layers.", ("hooks", "calls"), _count),
    Box(
        "A different result",
        "Her hooks watch the input and the output of each layer.",
        ("returns", "pre"),
        _result,
    ),
    Box("A wrong value", "Her hooks keep the output of each of the four layers.", ("overwritten", "input"), _keeping),
)
