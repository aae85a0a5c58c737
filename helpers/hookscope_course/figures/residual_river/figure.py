"""The residual river: what each part of a language model adds to a token's stream, and the word at each depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import traitlets
from torch import Tensor, nn

import hookscope
from hookscope.pictures.colors import FORWARD, FORWARD_SOFT, FRAME, HOOK, LINE, MUTED, RIGHT
from hookscope.pictures.picture import Rows
from hookscope.samples import STORY_WORDS, StoryLM, story_tokens, story_words
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Choice, Replay
from hookscope_course.figures.kit.still_sheet import Sheet
from hookscope_course.figures.residual_river.layout import place_river

__all__ = ["EXAMPLES", "ResidualRiver", "StreamOfText", "read_stream"]

EXAMPLES = (
    "the dogs near the cat",
    "the dog near the cats",
    "the birds near the horse",
    "Mary ball park Leo book Mary ball",
)
"""Texts that are always recorded, so that a page without a kernel can show them."""
_TOP = 3
_STRIP = 130  # pixels below the still river for the words and their arcs


class StreamOfText(NamedTuple):
    """What hooks found in one pass, for each position of the text.

    Args:
        words: the words, from the start token on.
        added: for each part that adds to the stream, the norm of what it returned.
        own: for each block, the norm of `output - args[0]`.
        stream: the norm of the stream: of the embedding, and after each part of a block.
        top: as `stream`, the words that the lens puts on top, with their probabilities.
        looks: for each head and position, the attention weights of the positions up to it.

    """

    words: list[str]
    added: dict[str, list[float]]
    own: dict[str, list[float]]
    stream: list[list[float]]
    top: list[list[list[tuple[str, float]]]]
    looks: dict[str, list[list[float]]]


def read_stream(model: StoryLM, text: str) -> StreamOfText:
    """Run the model on a text, with a hook at each place of the river, and return what they found.

    Example:
        >>> from hookscope import samples
        >>> found = read_stream(samples.story_lm(), "the dogs near the cat")
        >>> found.top[-1][-1][0][0]
        'wait'

    """
    tokens = story_tokens(text).to(model.head.weight.device)
    blocks = [f"blocks.{index}" for index in range(len(model.blocks))]
    added: dict[str, Tensor] = {}
    own: dict[str, Tensor] = {}
    streams: list[Tensor] = []

    def keep_added(name: str) -> Any:
        def keep(module: nn.Module, args: object, output: Tensor) -> None:
            added[name] = output.detach().clone()

        return keep

    def keep_own(name: str) -> Any:
        def keep(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            own[name] = output.detach() - args[0].detach()

        return keep

    def keep_stream(module: nn.Module, args: tuple[Tensor]) -> None:
        streams.append(args[0].detach().clone())

    with torch.no_grad(), ExitStack() as stack:
        for name in ("tokens", "positions", *(f"{block}.{part}" for block in blocks for part in ("attn", "mlp"))):
            stack.enter_context(model.get_submodule(name).register_forward_hook(keep_added(name)))
        for block in blocks:
            stack.enter_context(model.get_submodule(block).register_forward_hook(keep_own(block)))
        for name in (*(f"{block}.{norm}" for block in blocks for norm in ("norm1", "norm2")), "norm"):
            stack.enter_context(model.get_submodule(name).register_forward_pre_hook(keep_stream))
        model(tokens)
        stack.close()
        chances = [model.head(model.norm(stream))[0].softmax(-1).topk(_TOP) for stream in streams]

    def norms(tensor: Tensor) -> list[float]:
        rows = tensor if tensor.dim() == 2 else tensor[0]
        return [round(value, 3) for value in rows.norm(dim=-1).tolist()]

    return StreamOfText(
        story_words(tokens),
        {name: norms(tensor) for name, tensor in added.items()},
        {name: norms(tensor) for name, tensor in own.items()},
        [norms(stream) for stream in streams],
        [
            [
                [(STORY_WORDS[index], round(value, 3)) for value, index in zip(*row, strict=True)]
                for row in zip(found.values.tolist(), found.indices.tolist(), strict=True)
            ]
            for found in chances
        ],
        {
            _name_head(name, head): [
                [round(value, 2) for value in row[: at + 1]] for at, row in enumerate(weights.tolist())
            ]
            for name, each in hookscope.attention(model, tokens).items()
            for head, weights in enumerate(each.weights[0])
        },
    )


def _name_head(layer: str, head: int) -> str:
    return f"{layer}, head {head}"


def _list_texts(river: ResidualRiver) -> Iterator[Choice]:
    yield from ({"text": text} for text in river._texts)


class ResidualRiver(LazyFigure):
    """Follow a token of a text down the residual stream: what each part adds, and the word that a lens reads there.

    A click on a tap shows what a hook there gets, and the lines of torch that put it there.

    Args:
        model: a `samples.StoryLM`. Its weights and hooks stay the same.
        text: words of its vocabulary.
        lens: whether the pipes with the words are there.
        head: the head whose arcs are drawn, such as "blocks.1.attn, head 0"; '' for none, None to offer no heads.

    Attributes:
        text: the text that flows.
        token: the position of the token, from 0; the last one at first.
        depth: how far the drop has come: 0 is the embedding; then a number for each part; the last one at first.
        tap: the name of the tap that was clicked; '' if none.

    Raises:
        ValueError: the model does not know a word, or there is no such tap or head.

    Example:
        >>> from hookscope import samples
        >>> river = ResidualRiver(samples.story_lm(), "the dogs near the cat")
        >>> river.tap = "blocks.1.mlp"
        >>> print(river.code)
        def tap(module, args, output):
            print(output[0, 5].norm())
        handle = lm.blocks[1].mlp.register_forward_hook(tap)

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay(
        ("text",),
        {
            "The texts of the list are answered from a recording of the real model; texts of your own need a kernel "
            "(`make lab`).": _list_texts
        },
        quiet=("token", "depth", "tap", "head"),
    )

    text: Any = traitlets.Unicode(EXAMPLES[0]).tag(sync=True)
    token: Any = traitlets.Int(0).tag(sync=True)
    depth: Any = traitlets.Int(0).tag(sync=True)
    tap: Any = traitlets.Unicode("").tag(sync=True)
    head: Any = traitlets.Unicode("").tag(sync=True)
    lens: Any = traitlets.Bool(True).tag(sync=True)
    _texts: Any = traitlets.Dict().tag(sync=True)  # what was found, by text
    _heads: Any = traitlets.List().tag(sync=True)  # names of heads that can be chosen
    _stages: Any = traitlets.List().tag(sync=True)
    _taps: Any = traitlets.Dict().tag(sync=True)  # name: what a hook gets, a sentence, lines of code
    _layouts: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, model: StoryLM, text: str = EXAMPLES[0], lens: bool = True, head: str | None = None) -> None:
        text = " ".join(text.split())
        self._model, self._blocks, self._read = model, len(model.blocks), text
        parts = [f"blocks.{block}.{part}" for block in range(self._blocks) for part in ("attn", "mlp")]
        texts = {each: read_stream(model, each)._asdict() for each in dict.fromkeys((text, *EXAMPLES))}
        super().__init__(
            text=text,
            lens=lens,
            _texts=texts,
            _heads=[] if head is None else list(texts[text]["looks"]),
            _stages=["embedding", *parts],
            _taps=_describe_taps(self._blocks),
            _layouts={name: place_river(self._blocks, name == "narrow") for name in ("wide", "narrow")},
        )
        self.token, self.depth = len(self._found["words"]) - 1, len(parts)
        self.head = head or ""
        self._describe()

    @property
    def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = self._texts[self.text]
        return found

    @property
    def word(self) -> str:
        """The word that the lens reads where the drop is."""
        return str(self._found["top"][self.depth][self.token][0][0])

    @property
    def code(self) -> str:
        """The lines of torch for the tap that was clicked; '' if none was."""
        return str(_fill(self._taps[self.tap]["code"], {"row": self.token})) if self.tap else ""

    @traitlets.validate("text")
    def _check_text(self, proposal: Mapping[str, Any]) -> str:
        text = " ".join(str(proposal["value"]).split())
        if text in self._texts:
            self.problem = ""
            return text
        if "text" not in self._received:
            self._texts = {**self._texts, text: read_stream(self._model, text)._asdict()}
            return text
        with self.catch_errors():  # from the page: show the reason, and stay where we are
            self._texts = {**self._texts, text: read_stream(self._model, text)._asdict()}
        if self.problem:
            reason = self.problem.partition(": ")[2]
            self.problem = f"This text cannot be read: {reason}. The river still shows {self._read!r}."
            return self._read
        return text

    @traitlets.validate("token", "depth")
    def _check_number(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        count = len(self._found["words"]) if name == "token" else len(self._stages)
        if not 0 <= value < count:
            raise ValueError(f"there is no {name} {value}; there are {count}, counted from 0")
        return value

    @traitlets.validate("tap")
    def _check_tap(self, proposal: Mapping[str, Any]) -> str:
        name = str(proposal["value"])
        if name and name not in self._taps:
            raise ValueError(f"there is no tap {name!r}; there are: {', '.join(self._taps)}")
        return name

    @traitlets.validate("head")
    def _check_head(self, proposal: Mapping[str, Any]) -> str:
        name = str(proposal["value"])
        if name and name not in self._heads:
            raise ValueError(f"there is no head {name!r}; there are: {'; '.join(self._heads) or 'none'}")
        return name

    @traitlets.observe("text", "token", "depth", "tap", "head", "lens")
    def _on_change(self, change: Mapping[str, Any]) -> None:
        if change["name"] == "text":
            before, self._read = self._read, self.text
            if self.text != before and "token" not in self._received:
                self.token = len(self._found["words"]) - 1
        if self.token < len(self._found["words"]):  # else the text has just changed, and the token follows
            self._describe()

    def _say(self) -> str:
        """Say what has happened where the drop is."""
        found, row, stage = self._found, self.token, self._stages[self.depth]
        norm = found["stream"][self.depth][row]
        begin = f"Row {row}, {found['words'][row]}: "
        if self.depth == 0:
            said = f"{begin}the stream begins as the sum of two embeddings. Its norm is {norm:g}."
        else:
            said = f"{begin}{stage} adds {found['added'][stage][row]:g}. The stream now has the norm {norm:g}."
        if self.lens:
            word, chance = found["top"][self.depth][row][0]
            said += f" The lens reads: {word}, {_percent(chance)}."
        return said

    def _say_look(self) -> str:
        """Say from which rows the chosen head takes at least 5 %."""
        if not self.head:
            return ""
        words, row = self._found["words"], self.token
        taken = enumerate(self._found["looks"][self.head][row])
        parts = [f"{_percent(weight)} from row {at}, {words[at]}" for at, weight in taken if weight >= 0.05]
        return f"{self.head}: row {row}, {words[row]}, takes {'; '.join(parts)}."

    def _describe(self) -> None:
        where = " A pipe at each depth shows the word that the lens reads there." if self.lens else ""
        begin = f"The residual stream as a river, a row for each block of the model, for {self.text!r}."
        self.alt = " ".join(filter(None, (f"{begin}{where}", self._say(), self._say_look())))

    def summary(self) -> str:
        """Say where the drop is."""
        return f"ResidualRiver: {self._say()}"

    def numbers(self) -> Rows:
        """List what was added, the stream and the words, for the current token."""
        found, row = self._found, self.token
        rows: list[dict[str, object]] = []
        for depth, stage in enumerate(self._stages):
            rows.append(
                {
                    "stream after": stage,
                    "norm of what it adds": found["added"][stage][row] if depth else "",
                    "norm of the stream": found["stream"][depth][row],
                }
            )
            if self.lens:
                rows[-1]["the lens reads"] = _list_words(found["top"][depth][row])
        if self.head:
            for at, weight in enumerate(found["looks"][self.head][row]):
                rows.append({self.head: f"row {at}, {found['words'][at]}", "weight": weight})
        return rows

    def _still(self) -> bytes:
        layout, found, row = self._layouts["wide"], self._found, self.token
        width, height = layout["size"]
        sheet = Sheet.open([width, height + (_STRIP if self.head else 0)])
        for x, y, w, h, title, (left, base) in layout["frames"]:
            sheet.panel(x, y, w, h, rounding=8, facecolor=FRAME, edgecolor=LINE, zorder=0)
            sheet.write([left, base - 4], title, 9, ha="left")
        for stage, points in enumerate(layout["water"]):
            wide = _width(found["stream"][stage][row], found["stream"], row)
            for color, more in ((FORWARD, 2.5), (FORWARD_SOFT, 0)):
                look = {"color": color, "linewidth": 0.72 * wide + more, "zorder": 1}
                sheet.line(points, solid_capstyle="butt", **look)
        for points in layout["rails"]:
            sheet.arrow(points, FORWARD, 12, linewidth=1.6, zorder=2)
        for x, y in layout["pluses"]:
            sheet.circle([x, y], 11, facecolor="white", edgecolor=FORWARD, linewidth=1.6, zorder=3)
            sheet.write([x, y], "+", 12)
        for name, (x, y, w, h) in layout["boxes"].items():
            sheet.box(x, y, w, h, rounding=8, facecolor="white", edgecolor=FORWARD, linewidth=1.5, zorder=3)
            sheet.write([x, y - 8], name.rpartition(".")[2], 8.5, MUTED)
            sheet.write([x, y + 8], f"+ {found['added'][name][row]:g}", 10.5)
        for x, y in layout["taps"].values():
            sheet.circle([x, y], 8, facecolor=HOOK, edgecolor="white", zorder=4)
        final = found["top"][-1][row][0][0]
        for stage, (x, y, w, h) in enumerate(layout["lenses"] if self.lens else ()):
            sheet.line(layout["pipes"][stage], color=FORWARD, linewidth=1.6, linestyle=":", zorder=2)
            word, chance = found["top"][stage][row][0]
            same = {"edgecolor": RIGHT, "linewidth": 3} if word == final else {"edgecolor": LINE, "linewidth": 1.3}
            sheet.box(x, y, w, h, rounding=8, facecolor="white", zorder=3, **same)
            sheet.write([x, y - 8], _percent(chance), 8.5, MUTED)
            sheet.write([x, y + 8], word, 10.5, weight="bold" if word == final else "normal")
        x, y, w, h = layout["says"]
        sheet.box(x, y, w, h, rounding=8, facecolor=FORWARD_SOFT, edgecolor=FORWARD, linewidth=1.5, zorder=3)
        sheet.write([x, y - 8], "says", 8.5, MUTED)
        sheet.write([x, y + 8], final if self.lens else "?", 10.5, weight="bold")
        if self.head:
            self._draw_arcs(sheet, width, height + _STRIP - 24)
        return sheet.png(self.alt)

    def _draw_arcs(self, sheet: Sheet, width: float, base: float) -> None:
        """Draw the words below the river, and an arc from the current one to each that the head looks at."""
        words, row = self._found["words"], self.token
        pitch = min(110.0, (width - 40) / len(words))
        places = [width / 2 + pitch * (at - (len(words) - 1) / 2) for at in range(len(words))]
        for at, weight in enumerate(self._found["looks"][self.head][row]):
            if weight >= 0.01:
                look = {"color": FORWARD, "linewidth": 1 + 7 * weight, "alpha": 0.35 + 0.65 * weight}
                sheet.line(_bend(places[row], places[at], base - 26), zorder=1, **look)
            sheet.write([places[at], base + 14], _percent(weight), 8.5, MUTED)
        for at, word in enumerate(words):
            look = {"facecolor": FORWARD_SOFT if at == row else "white", "edgecolor": FORWARD if at == row else LINE}
            sheet.box(places[at], base - 12, pitch - 8, 26, rounding=8, zorder=3, **look)
            sheet.write([places[at], base - 12], word, 10)
        sheet.write([20, base - _STRIP + 40], self.head, 9, MUTED, ha="left")


def _bend(start: float, end: float, y: float) -> list[list[float]]:
    """Return points of an arc over the words; over a single word, of a loop."""
    high = min(64.0, 18 + 0.2 * abs(end - start))
    if start == end:
        start, end = start - 12, end + 12
    steps = [step / 24 for step in range(25)]
    return [[start + (end - start) * step, y - 4 * high * step * (1 - step)] for step in steps]


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f} %"


def _list_words(top: list[Any]) -> str:
    return ", ".join(f"{word} {_percent(chance)}" for word, chance in top)


def _width(norm: float, streams: list[list[float]], row: int) -> float:
    """How wide the river is drawn: in proportion to the norm of the stream, 22 where it is largest."""
    return 4 + 18 * norm / max(each[row] for each in streams)


def _fill(template: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", str(value))
    return template


def _describe_taps(blocks: int) -> dict[str, dict[str, str]]:
    """Return for each tap what a hook gets there, a sentence, and three lines that put it there.

    `gets` is "addition", "sum" or "lens". In the texts, {row} is the position, {norm} the norm of what the hook gets,
    {own} that of what a block added, and {top} the words of the lens.
    """
    taps: dict[str, dict[str, str]] = {}

    def add(name: str, gets: str, said: str, body: str, module: str, before: bool = False) -> None:
        given = "module, args" if before else "module, args, output"
        register = "register_forward_pre_hook" if before else "register_forward_hook"
        code = f"def tap({given}):\n    print({body})\nhandle = lm.{module}.{register}(tap)"
        taps[name] = {"gets": gets, "said": said, "code": code}

    for name, index in (("tokens", "0, {row}"), ("positions", "{row}")):
        said = f"A forward hook on `{name}` gets an addition: the embedding of the {name[:-1]}. Its norm is {{norm}}."
        add(name, "addition", said, f"output[{index}].norm()", name)
    for block in range(blocks):
        here, path = f"blocks.{block}", f"blocks[{block}]"
        for part in ("attn", "mlp"):
            said = f"A forward hook on `{here}.{part}` gets an addition: what `{part}` adds. Its norm is {{norm}}."
            add(f"{here}.{part}", "addition", said, "output[0, {row}].norm()", f"{path}.{part}")
            if part == "attn":
                said = (
                    f"A pre-hook on `{here}.norm2` gets the sum so far, between `attn` and `mlp`. Its norm is {{norm}}."
                )
                add(f"{here}.norm2", "sum", said, "args[0][0, {row}].norm()", f"{path}.norm2", before=True)
        said = (
            f"A forward hook on `{here}` gets the sum so far: the stream. Its norm is {{norm}}. "
            f"What the block itself has added is `output - args[0]`, with the norm {{own}}."
        )
        add(here, "sum", said, "output[0, {row}].norm()", path)
    said = "`norm` and `head`, applied to the stream here, read: {top}."
    word = "samples.STORY_WORDS[lm.head(lm.norm({stream})).argmax()]"
    for depth in range(2 * blocks + 1):
        block, half = divmod(depth, 2)
        if half:
            name, module, before = f"blocks.{block}.attn", f"blocks[{block}].norm2", True
        elif depth == 2 * blocks:  # a hook on `norm` would call itself
            name, module, before = f"blocks.{block - 1}.mlp", f"blocks[{block - 1}]", False
        else:
            name, module, before = f"blocks.{block - 1}.mlp" if block else "embedding", f"blocks[{block}]", True
        add(
            f"lens after {name}",
            "lens",
            said,
            _fill(word, {"stream": "args[0][0, {row}]" if before else "output[0, {row}]"}),
            module,
            before,
        )
    return taps
