"""A report on one head of the cloakroom model: every claim in it is run, judged in words, and drawn on one page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookscope.interp.attentions import attention
from hookscope.pictures.colors import CHANGED, DATA, DOOR, HOOK, INK, PAGE, RIGHT
from hookscope.pictures.picture import Picture, from_figure
from hookscope.samples import STORY_WORDS
from hookscope.samples.stories import Block, StoryLM
from hookscope_course.chapters.ch21_cloakroom import Lists, cloakroom_lists, cloakroom_lm, things_of
from hookscope_course.practice.blank import holds_blank
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.rubric import NOTHING_YET, RefusedError, Review, judge_statements

__all__ = [
    "ENOUGH",
    "FEW",
    "RANDOM",
    "STATEMENTS",
    "UNHARMED",
    "WHO",
    "HeadReview",
    "Steering",
    "review",
    "show_report",
    "turned_by",
]

COUNT, ENOUGH, FEW, UNHARMED = 100, 90, 5, 55
"""How many lists there are; how many answers head and hook have to turn; how many the control may; how many answers
have to stay right when somebody else comes."""
RANDOM = 20
"""How many random vectors there are."""
COMES, WHO = "Ben", "Anna"
"""Who comes, and whose thing he gets."""
STATEMENTS: Mapping[str, tuple[str, str]] = {
    "A": (
        "This head looks at the thing, and so it carries it.",
        "your control looks there as well, and carries nothing",
    ),
    "B": ("Everything was tried on lists of four people. Other texts may need other heads.", ""),
    "C": (
        "This head does all the work; the answer needs no other part of the model.",
        "you patched one head, while all the others worked as before",
    ),
    "D": (
        "The vector is the place where the model keeps “Anna”.",
        "a vector that works is one of many; you have not looked for another",
    ),
    "E": ("The page compares your vector with 20 random ones. Another direction may do what yours does.", ""),
}
"""What is said of every such report, and why it is false; two of the five are true."""
_PAGE, _HIDDEN = 0, 2101  # the seeds of the lists that learners have, and of those that they do not have
Hook = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]
Head = tuple[int, int]


class Steering(NamedTuple):
    """What is handed out: how many of the lists get the right thing, Anna's thing, and another one."""

    done: str
    right: float
    hers: float

    @property
    def another(self) -> float:
        """How many get neither."""
        return COUNT - self.right - self.hers


class HeadReview(Review):
    """What is true of a report: a reason for each point, and everything that was measured on the way.

    Attributes:
        heads: by their name in the report, "head" and "control", as block and number; those that there are.
        turned: for each head, how many of 100 new lists it turns.
        looks: for each head, the mean of its weights on the thing.
        steering: without a hook, with it, with random vectors, and with the hook when somebody else comes.

    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.heads: dict[str, Head] = {}
        self.turned: dict[Head, int] = {}
        self.looks: dict[Head, float] = {}
        self.steering: list[Steering] = []

    @property
    def shown(self) -> dict[Head, int]:
        """The heads whose numbers are on the page: those that are named, and all once the first two points are made."""
        found = not any(criterion.problem for criterion in self.criteria[:2])
        return {head: turned for head, turned in self.turned.items() if found or head in self.heads.values()}

    def picture(self) -> Picture:
        """Return the page: the heads, the things that are handed out, the sentence."""
        caption = f"A report on one head: {self.points} of {len(self.criteria)} points"
        # Drawn when it is seen: a grader needs no picture.
        return Picture(partial(_draw, self), _alt(self), caption, _rows(self))


def turned_by(model: StoryLM, lists: Lists, block: int, head: int) -> int:
    """Put one head from the run of the other lists into the run of the lists, at the last token; count the answers.

    Example:
        >>> turned_by(cloakroom_lm(), cloakroom_lists(100), 0, 0)
        0

    """
    kept: list[Tensor] = []
    attn = _block(model, block).attn
    wide = attn.proj.in_features // attn.num_heads
    part = slice(wide * head, wide * head + wide)

    def put(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[:, -1, part] = kept[0][:, -1, part]
        return (x,)

    with torch.no_grad():
        with attn.proj.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone())):
            model(lists.others)
        with attn.proj.register_forward_pre_hook(put):
            answers = model(lists.tokens)[:, -1].argmax(-1)
    return int((answers == lists.other_answers).sum())


def show_report(report: Mapping[str, Any], steer: Hook | None) -> None:
    """Show the page of a report, below the cell.

    Args:
        report: with the fields head, control, turned, limits and sentence.
        steer: the forward hook on `blocks.0`.

    """
    from IPython.display import display

    display(_page_of(report, steer))  # type: ignore[no-untyped-call]


def _page_of(report: Mapping[str, Any], steer: Hook | None) -> Picture | Card:
    if holds_blank(report):
        return Card("No page yet.", "your page appears here when no `____` is left in the report")
    return review(report, steer).picture()


def review(report: Mapping[str, Any], steer: Hook | None) -> HeadReview:
    """Run every claim of a report, and judge it.

    Nothing that is written into the report is taken for true: all numbers are measured here, on lists that no page has.

    Args:
        report: head and control (block and number), turned (how many of the page's lists each of them turns), limits
            (letters of `STATEMENTS`) and sentence. A field that is None gets no point.
        steer: a forward hook for `blocks.0`.

    """
    found, model, lists = HeadReview(report), _model(), cloakroom_lists(COUNT, seed=_HIDDEN)
    for block in range(len(model.blocks)):
        weights = attention(model, lists.tokens)[f"blocks.{block}.attn"].weights
        seen = weights[torch.arange(COUNT), :, -1, lists.places].mean(0).tolist()
        for number, share in enumerate(seen):
            found.turned[block, number], found.looks[block, number] = turned_by(model, lists, block, number), share
    for field in ("head", "control"):
        if (named := _named(found, report.get(field))) is not None:
            found.heads[field] = named
    problems = [
        _wrong_head(found),
        _wrong_control(found),
        _wrong_turned(found),
        *_wrong_hook(found, steer),
        judge_statements(report.get("limits"), STATEMENTS),
    ]
    found.give_points(_ASKED, problems)
    return found


_ASKED = (
    f"of {COUNT} new lists, a patch of the head turns {ENOUGH} or more",
    f"the control is in the same block, looks at the thing as much, and turns {FEW} or fewer",
    "the two numbers are those of the lists on your page",
    f"the hook adds one vector, to the last token only, and {COMES} gets {WHO}'s thing in {ENOUGH} of {COUNT}",
    f"with the hook on, {UNHARMED} of {COUNT} others still get the right thing",
    "the limits are the two statements that are true",
)


def _model() -> StoryLM:
    return cloakroom_lm()  # a new one for each use: the hook can write into its parameters


def _block(model: StoryLM, block: int) -> Block:
    found = model.blocks[block]
    assert isinstance(found, Block)
    return found


# -- the heads ------------------------------------------------------------------------------------------------------


def _named(found: HeadReview, head: object) -> Head | None:
    if not isinstance(head, tuple | list) or len(head) != 2 or any(type(each) is not int for each in head):
        return None
    named = head[0], head[1]
    return named if named in found.turned else None


def _no_head(field: str, value: object) -> str:
    return NOTHING_YET if value is None else f"`{field}` is {value!r}; write block and number of a head, such as (0, 3)"


def _wrong_head(found: HeadReview) -> str:
    if (head := found.heads.get("head")) is None:
        return _no_head("head", found.report.get("head"))
    turned = found.turned[head]
    return "" if turned >= ENOUGH else f"a patch of {head} turns {turned} of {COUNT}"


def _wrong_control(found: HeadReview) -> str:
    if (control := found.heads.get("control")) is None:
        return _no_head("control", found.report.get("control"))
    if (head := found.heads.get("head")) is None or _wrong_head(found):
        return "a control needs a head that passes, point 1"
    if control == head:
        return "that is your head; a control is a second one"
    if control[0] != head[0]:
        return f"your head is in block {head[0]}, and the control in block {control[0]}; take one of the same block"
    looks, wanted = found.looks[control], found.looks[head]
    if looks < 0.9 * wanted:
        return (
            f"{control} gives {looks:.2f} to the thing, and your head {wanted:.2f}; take one that looks there as much"
        )
    turned = found.turned[control]
    return "" if turned <= FEW else f"a patch of {control} turns {turned} of {COUNT}, so it carries something itself"


def _wrong_turned(found: HeadReview) -> str:
    said = found.report.get("turned")
    if said is None:
        return NOTHING_YET
    if not isinstance(said, tuple | list) or len(said) != 2 or any(type(each) is not int for each in said):
        return f"`turned` is {said!r}; write two integers, that of the head and that of the control"
    if missing := [field for field in ("head", "control") if field not in found.heads]:
        return f"these are the numbers of two heads, and there is no {missing[0]} yet"
    lists = cloakroom_lists(COUNT, seed=_PAGE)
    for (field, head), number in zip(found.heads.items(), said, strict=True):
        if number != (turned := turned_by(_model(), lists, *head)):
            return f"on the page's lists, a patch of the {field} turns {turned}; you wrote {number}"
    return ""


# -- the hook -------------------------------------------------------------------------------------------------------


def _wrong_hook(found: HeadReview, steer: Hook | None) -> tuple[str, str]:
    """Return why the hook misses each of its two points: it fails on its lists, or harms others. Empty if it passes."""
    model = _model()
    lists = cloakroom_lists(COUNT, seed=_HIDDEN + 1, comes=COMES, waits=WHO)
    beside = cloakroom_lists(2 * COUNT, seed=_HIDDEN + 2, waits=WHO)
    beside = _select(beside, beside.tokens[:, -1] != STORY_WORDS.index(COMES))

    def hand_out(done: str, answers: Tensor, of: Lists) -> Steering:
        runs, hers = answers.reshape(-1, COUNT), things_of(of.tokens, WHO)
        right, given = (float((runs == wanted).sum()) / len(runs) for wanted in (of.answers, hers))
        return Steering(done, right, given)

    first = "this counts when the hook gets its point, point 4"
    with torch.no_grad():
        found.steering.append(hand_out(f"{COMES} comes", model(lists.tokens)[:, -1].argmax(-1), lists))
    if not callable(steer):
        return NOTHING_YET if steer is None else f"`steer` is {steer!r}; write a forward hook", first
    try:
        vector = _vector_of(_block(model, 0), steer)
        hooked = hand_out("with your hook", _run(model, steer, lists.tokens, vector), lists)
        others = hand_out("others come", _run(model, steer, beside.tokens, vector), beside)
    except RefusedError as refused:
        return str(refused), first
    except Exception as error:
        return f"your hook raised {type(error).__name__}: {error}", first
    random = torch.randn(RANDOM, len(vector), generator=torch.Generator().manual_seed(_HIDDEN))
    random *= vector.norm() / random.norm(dim=1, keepdim=True)
    answers = [_run(model, partial(_add, each), lists.tokens) for each in random]
    found.steering += [hooked, hand_out("random vectors", torch.cat(answers), lists), others]
    if hooked.hers < ENOUGH:
        return f"{COMES} gets {WHO}'s thing in {hooked.hers:.0f} of {COUNT}, and his own in {hooked.right:.0f}", first
    if others.right < UNHARMED:
        long = f"your vector has the length {vector.norm():.3g}; take a shorter one"
        return "", f"with the hook on, only {others.right:.0f} of {COUNT} others get the right thing; {long}"
    return "", ""


def _select(lists: Lists, where: Tensor) -> Lists:
    return Lists(*(each[where][:COUNT] for each in lists))


def _add(vector: Tensor, module: nn.Module, args: object, output: Tensor) -> Tensor:
    output = output.clone()
    output[:, -1] += vector
    return output


def _vector_of(block: Block, steer: Hook) -> Tensor:
    """Measure what a hook adds, on rows that are no list's."""
    draw = torch.Generator().manual_seed(0)
    vectors: list[Tensor] = []
    for tokens in (14, 14, 9):
        rows = torch.randn(2, tokens, block.norm1.normalized_shape[0], generator=draw, dtype=torch.float64)
        given = rows.clone()
        added = _result(steer(block, (rows.flip(0),), given), given, rows) - rows
        if not torch.equal(given, rows):
            raise RefusedError("your hook wrote into `output`; return a changed copy")
        if not torch.allclose(added[:, :-1], torch.zeros_like(added[:, :-1]), atol=1e-6):
            raise RefusedError("your hook changes other rows than that of the last token; change `[:, -1]` only")
        vectors += [*added[:, -1]]
    vector = vectors[0].float()
    if any(not torch.allclose(each.float(), vector, atol=1e-5) for each in vectors):
        raise RefusedError("your hook does not add the same vector to each list")
    if not bool(torch.isfinite(vector).all()):
        raise RefusedError("your vector has numbers that are not finite")
    if not bool(vector.any()):
        raise RefusedError("your hook changes nothing")
    return vector


def _result(changed: object, given: Tensor, rows: Tensor) -> Tensor:
    if changed is None:
        if torch.equal(given, rows):
            raise RefusedError("your hook returned None, so the output of `blocks.0` stayed as it was")
        raise RefusedError("your hook wrote into `output` and returned None; return a changed copy")
    if not isinstance(changed, Tensor) or changed.shape != rows.shape:
        what = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise RefusedError(f"your hook got rows of shape {tuple(rows.shape)} and returned {what}; return all the rows")
    return changed


def _run(model: StoryLM, hook: Hook, tokens: Tensor, vector: Tensor | None = None) -> Tensor:
    """Return the answers with a hook on, and hold it to the vector that was measured."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        seen.append(output.clone())

    block = _block(model, 0)
    with (
        torch.no_grad(),
        block.register_forward_hook(keep),
        block.register_forward_hook(hook),
        block.register_forward_hook(keep),
    ):
        answers: Tensor = model(tokens)[:, -1].argmax(-1)
    before, after = seen
    if vector is not None:
        expected = _add(vector, block, (), before)
        if after.shape != before.shape or not torch.allclose(after, expected, atol=1e-4):
            raise RefusedError(
                "on a list, your hook does something else than on other rows; always add the same vector"
            )
    return answers


# -- the page -------------------------------------------------------------------------------------------------------

_LOOKS = {"head": (HOOK, "-"), "control": (DATA[0], "--")}
_GIVEN = {"the right thing": RIGHT, f"{WHO}'s thing": CHANGED, "another thing": DOOR}


def _draw(found: HeadReview) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    figure.suptitle("Which head finds the thing?", x=0.01, ha="left", fontsize=16, color=INK)
    panels = figure.subplot_mosaic(
        [["heads", "bars"], ["words", "words"]], height_ratios=[2, 1.1], width_ratios=[1.5, 1]
    )
    heads = panels["heads"]
    blocks, numbers = (max(head[axis] for head in found.turned) + 1 for axis in (0, 1))
    for (block, number), turned in found.turned.items():
        is_shown = (block, number) in found.shown
        share = turned / COUNT if is_shown else 0.0
        heads.add_patch(
            Rectangle(
                (number, block), 1, 1, facecolor=(0.95, 0.96 - 0.4 * share, 0.97 - 0.45 * share), edgecolor="white"
            )
        )
        middle: dict[str, Any] = {"ha": "center", "va": "center", "color": INK}
        if not is_shown:
            heads.text(number + 0.5, block + 0.5, "?", fontsize=14, **middle)
            continue
        heads.text(number + 0.5, block + 0.46, f"turns {turned}", fontsize=11, **middle)
        heads.text(number + 0.5, block + 0.7, f"looks {found.looks[block, number]:.2f}", fontsize=9, **middle)
    for field, (block, number) in found.heads.items():
        color, line = _LOOKS[field]
        edges: dict[str, Any] = {"facecolor": "none", "edgecolor": color, "linestyle": line, "linewidth": 3}
        inset = 0.04 if field == "head" else 0.07
        heads.add_patch(Rectangle((number + inset, block + inset), 1 - 2 * inset, 1 - 2 * inset, **edges))
        heads.text(number + 0.5, block + 0.22, field, ha="center", va="center", fontsize=10, color=color, weight="bold")
    heads.set(xlim=(0, numbers), ylim=(blocks, 0), title=f"each head, patched in {COUNT} new lists")
    heads.set_xticks([number + 0.5 for number in range(numbers)], [f"head {number}" for number in range(numbers)])
    heads.set_yticks([block + 0.5 for block in range(blocks)], [f"block {block}" for block in range(blocks)])
    heads.tick_params(length=0)
    heads.spines[:].set_visible(False)
    bars = panels["bars"]
    for at, row in enumerate(found.steering):
        left = 0.0
        for value, (_, color) in zip((row.right, row.hers, row.another), _GIVEN.items(), strict=True):
            bars.barh(at, value, left=left, height=0.6, color=color)
            if value >= 8:
                ink = PAGE if color != DOOR else INK
                bars.text(left + value / 2, at, f"{value:.0f}", ha="center", va="center", color=ink)
            left += value
    bars.set_yticks(range(len(found.steering)), [row.done for row in found.steering])
    bars.set(xlim=(0, COUNT), xticks=[], title=f"what is handed out, of {COUNT}")
    bars.invert_yaxis()
    bars.tick_params(length=0)
    bars.spines[:].set_visible(False)
    marks = [Rectangle((0, 0), 1, 1, color=color) for color in _GIVEN.values()]
    bars.legend(
        marks,
        list(_GIVEN),
        loc="upper right",
        bbox_to_anchor=(1.04, -0.02),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        columnspacing=0.9,
    )
    panels["words"].axis("off")
    panels["words"].text(-0.06, 1, _words(found, steering=False), va="top", fontsize=10.5, color=INK, linespacing=1.4)
    return from_figure(figure, "A page.").png


def _words(found: HeadReview, steering: bool = True) -> str:
    chosen = found.report.get("limits")
    chosen = chosen if isinstance(chosen, Collection) else ()
    limits = [text for letter, (text, _) in STATEMENTS.items() if letter in chosen]
    named = [
        f"The {field} {head} turns {found.turned[head]} of {COUNT} lists, and looks there with {found.looks[head]:.2f}."
        for field, head in found.heads.items()
    ]
    given = [
        f"{row.done[0].upper()}{row.done[1:]}: {row.hers:.0f} times {WHO}'s thing, {row.right:.0f} times the right one."
        for row in found.steering
    ]
    lines = [
        found.quote(),
        " ".join(named),
        " ".join(given) if steering else "",
        " ".join(limits),
        found.count_points(),
    ]
    return "\n".join(textwrap.fill(line, 104) for line in lines if line)


def _alt(found: HeadReview) -> str:
    grid = "; ".join(
        f"head {head} turns {turned} and looks {found.looks[head]:.2f}" for head, turned in found.shown.items()
    )
    grid = grid or "none is named yet"
    return f"A page. On the left the heads: {grid}. On the right bars, and below: {_words(found)}".replace("\n", " ")


def _rows(found: HeadReview) -> list[dict[str, object]]:
    marks = {head: field for field, head in found.heads.items()}
    rows: list[dict[str, object]] = [
        {"what": f"head {head}", "in the report": marks.get(head, ""), "turns": turned, "looks": found.looks[head]}
        for head, turned in found.shown.items()
    ]
    return rows + [
        {"what": row.done, "the right thing": row.right, f"{WHO}'s thing": row.hers, "another": row.another}
        for row in found.steering
    ]
