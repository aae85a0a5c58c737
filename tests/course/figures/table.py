"""Every interactive figure, one row each: how it is made, what a reader does with it, and what it refuses."""

from __future__ import annotations

import re
import runpy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples, widgets
from hookscope.widgets.base import HookWidget
from hookscope_course import figures
from hookscope_course.figures.author_slider.figure import AuthorSlider
from hookscope_course.figures.both_ends import figure as both_ends
from hookscope_course.figures.bridge import figure as bridge
from hookscope_course.figures.gradient_parts import layout as parts_layout
from hookscope_course.figures.residual_river import layout as river_layout
from hookscope_course.figures.ten_times_game.figure import REASONS
from hookscope_course.figures.travel_map import figure as travel_map
from hookscope_course.figures.travel_map.stations import FATES, STATIONS
from hookscope_course.figures.two_runs.figure import CLEAN
from tests.shared import ROOT
from tests.shared.awkward import Net
from tests.shared.language import gpt2
from tests.shared.read import IDS, WORDS, Reader
from tests.shared.recorded import nested, recorded
from tools.blocks import block

Layout = tuple[tuple[float, float], list[tuple[float, ...]]]
"""Width and height of a drawing; and of each box in it, its center, its width and its height."""


@dataclass(frozen=True)
class Figure:
    """One figure and what is promised of it.

    Attributes:
        make: makes it, of what `model` returns.
        sets: what a reader sets, trait by trait, from Python and from the page.
        refused: a trait, a value that it does not take, and the key words of the reason.
        calls: what else is refused: something done with the figure, and the key words.
        model: makes the model that the figure looks at.
        secret: what no reader may find in the words of a figure before the guess, as patterns.
        reveal: sets what shows it.
        final: a trait, another guess, and the key words: after `reveal`, guesses stay.
        hidden: an attribute that raises an error until then.
        together: whether all of `sets` may come in one message, as a kernel that was busy gets them.
        follows: whether its words, its numbers or its picture follow what is set.
        has_picture: whether a picture stands in for it.
        is_random: whether it draws random numbers that are the reader's.
        boxes: by layout, its width and its height, and what must be within and apart.

    """

    make: Callable[[Any], HookWidget]
    sets: dict[str, Any]
    refused: tuple[tuple[str, Any, str], ...] = ()
    calls: tuple[tuple[Callable[[Any], object], str], ...] = ()
    model: Callable[[], Any] = lambda: None
    secret: Callable[[Any], tuple[str, ...]] | None = None
    reveal: dict[str, Any] | None = None
    final: tuple[tuple[str, Any, str], ...] = ()
    hidden: str = ""
    together: bool = True
    follows: bool = True
    has_picture: bool = True
    is_random: bool = False
    boxes: Callable[[bool], Layout] | None = None


def attention(net: nn.Module) -> Any:
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    return hookscope.attention(net, x, tokens=["the", "cat", "sat"])


def two_attentions() -> nn.Module:
    torch.manual_seed(0)
    wide, narrow = (nn.MultiheadAttention(8, heads, batch_first=True) for heads in (4, 2))
    return Net(lambda self, x: self.narrow(*[self.wide(x, x, x)[0]] * 3)[0], wide=wide, narrow=narrow).eval()


def patched(net: nn.Module) -> Any:
    options = hookscope.SweepOptions(tokens=WORDS[:5], progress=False)
    return hookscope.sweep(
        net, IDS[:, :5], layers="transformer.h.*", source=IDS[:, :5].flip(1), positions=range(5), options=options,
        metric=lambda output: output.logits[0, -1, 3],
    )  # fmt: skip


def by_layer(net: nn.Module, feature: Callable[[Tensor], Tensor] = lambda output: output.mean((2, 3))) -> HookWidget:
    (images, labels), (others, names) = samples.digits("train"), samples.digits("test")
    known, shown = (images[:60], labels[:60]), (others[:40], names[:40])
    return figures.DigitsByLayer({"trained": net}, feature, known, shown)


class DigitReader(nn.Module):
    """Turns black and white around, as the program of chapter 00 does."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: Tensor) -> Tensor:
        return self.network(1 - scan)


def of_layout(layout: dict[str, Any]) -> Layout:
    """The boxes of most layouts: by name, or with a name and a way in front."""
    if isinstance(boxes := layout["boxes"], dict):
        return layout["size"], [box[:4] for box in boxes.values()]
    return layout["size"], [box[2:6] for box in boxes]


def of_river(layout: dict[str, Any]) -> Layout:
    return layout["size"], [*layout["boxes"].values(), *layout["lenses"], layout["says"]]


def of_travel(layout: dict[str, Any]) -> Layout:
    cards = [layout["home"], *layout["cards"].values()]
    return layout["size"], [(x + w / 2, y + h / 2, w, h) for x, y, w, h in cards]


@cache
def smallest() -> type[HookWidget]:
    """The smallest widget of docs/authoring.md, as a contributor would copy it."""
    with tempfile.TemporaryDirectory() as folder:
        for end in ("py", "js"):
            text = block(ROOT / "docs" / "authoring.md", f"widget-{end}").rstrip("`")
            Path(folder, f"counter.{end}").write_text(text.partition("\n")[2])
        return runpy.run_path(f"{folder}/counter.py")["Counter"]


RECORDING = recorded()
LM, DIGITS, NINE = samples.story_lm, samples.digit_cnn, samples.digit(9)
VERBS = {"plural verbs": ("run", "sleep"), "singular verbs": ("runs", "sleeps")}
PUSH = torch.linspace(-0.01, 0.01, 64)
SCANS = torch.cat([samples.digit(5), samples.digit(1)])

FIGURES: dict[str, Figure] = {
    "LayerPicker": Figure(
        lambda net: widgets.LayerPicker(net, samples.digit(5)),
        {"layer": "block2.relu", "channel": 3, "show": "gradient", "target": 2},
        refused=(
            ("layer", "block1.cnov", "no layer 'block1.cnov'; did you mean 'block1.conv'"),
            ("show", "gradiant", "choose 'activation', 'gradient'"),
            ("order", "size", "choose 'index'"),
            ("channel", 16, "choose -1 to 15"),
            ("sample", 1, "choose 0 to 0"),
            ("call", 2, "choose 1 to 1"),
            ("target", 10, "choose -1 to 9"),
            ("per_page", 0, "choose 1 to 256"),
            ("part", "[0]", "choose ''"),
        ),
        calls=(
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, layr="fc"), "no option 'layr'"),
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, layer="block1.cnov"), "did you mean"),
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, classes=["a", "b"]), "the model returns 10 scores"),
        ),
        model=DIGITS,
        together=False,
    ),
    "OrderPlayer": Figure(
        lambda _: widgets.OrderPlayer(RECORDING),
        {"index": 7},
        refused=(
            ("index", -2, "no event -2: set index from -1"),
            ("index", 20, "to 19"),
            ("index", "first", "index"),
        ),
        calls=(
            (lambda _: widgets.OrderPlayer(nested()), "must be a Recording, not Sequential"),
            (lambda _: widgets.OrderPlayer(RECORDING, kinds="forwards"), "The kinds are forward_pre, forward"),
            (lambda _: widgets.OrderPlayer(RECORDING, kinds="step_pre"), "no events of kind step_pre"),
            (lambda _: widgets.OrderPlayer(RECORDING, layers="0.2"), "Did you mean '0."),
            (lambda _: widgets.OrderPlayer(RECORDING, layers="nowhere"), "The layers are (root), 0, 0.0"),
            (lambda _: widgets.OrderPlayer(RECORDING, layers=[]), "Name at least one layer"),
        ),
    ),
    "AttentionPicker": Figure(
        lambda net: widgets.AttentionPicker(attention(net)),
        {"layer": "wide", "head": 3, "sample": 1},
        refused=(
            ("layer", "wied", "did you mean 'wide'"),
            ("head", 4, "no head 4"),
            ("sample", 2, "no sample 2"),
        ),
        calls=(
            (lambda _: widgets.AttentionPicker(attention(two_attentions()), layer="nothing"), "nothing"),
            (lambda _: widgets.AttentionPicker(attention(two_attentions()), row=1), "no attribute 'row'"),
            (lambda _: widgets.AttentionPicker(nn.ReLU()), "must be AttentionMaps, not ReLU"),
            (lambda _: widgets.AttentionPicker(hookscope.attention(nn.ReLU(), PUSH)), "no attention map to show"),
        ),
        model=two_attentions,
    ),
    "PatchMap": Figure(
        lambda net: widgets.PatchMap(patched(net), vocabulary=[f"word{number}" for number in range(20)]),
        {"layer": "transformer.h.1", "column": 0, "position": 2},
        refused=(
            ("layer", "transformer.h0", "did you mean 'transformer.h.0'"),
            ("column", 5, "no position 5 in this sweep"),
            ("sample", 2, "no sample 2: the output has 2"),
            ("position", 5, "no position 5: the output has 5"),
        ),
        calls=(
            (lambda _: widgets.PatchMap([]), "must be a Sweep, not list"),
            (lambda each: widgets.PatchMap(each._sweep, row=1), "no attribute 'row'"),
            (lambda each: widgets.PatchMap(each._sweep, vocabulary=["a", "b"]), "no tensor"),
            (lambda each: widgets.PatchMap(each._sweep, classes=["a"]), "(samples, classes)"),
            (lambda each: widgets.PatchMap(each._sweep, classes=["a"], vocabulary=["a"]), "not both"),
        ),
        model=gpt2,
    ),
    "TokenPicker": Figure(
        lambda net: widgets.TokenPicker(net, IDS, vocabulary=WORDS),
        {"layer": "blocks.0", "token": 1, "show": "norm", "sample": 1},
        refused=(
            ("layer", "block.2", "did you mean 'blocks.2'"),
            ("token", 6, "there are 6 tokens"),
            ("sample", 2, "no sample 2"),
            ("head", 1, "no head 1"),
            ("show", "loss", "choose 'final word'"),
            ("attention", "blocks.0.heads.0", "no map 'blocks.0.heads.0' in layer 'blocks.2'"),
            ("text", "the cat", "no tokenizer"),
        ),
        calls=(
            (lambda _: widgets.TokenPicker(Reader(), IDS, tokens=["the", "cat"]), "there are 6 positions"),
            (lambda _: widgets.TokenPicker(Reader(), IDS, tokens=[["the"] * 6]), "1 lists for 2 samples"),
            (lambda _: widgets.TokenPicker(Reader(), IDS, tokens=[1] * 6), "not a string"),
            (lambda _: widgets.TokenPicker(Reader(), IDS, vocabulary=["the"]), "the lens makes logits for 10"),
            (lambda _: widgets.TokenPicker(Reader(), IDS, vocabulary={"the": 0}), "vocabulary is a dict"),
        ),
        model=Reader,
    ),
    "CallSource": Figure(
        lambda _: figures.CallSource(),
        {"way": "forward", "step": 1},
        refused=(("way", "backward", "way"), ("step", 0, "step")),
        follows=False,
    ),
    "GradientPlayground": Figure(
        lambda _: figures.GradientPlayground(),
        {"choices": {"d": "hook"}, "factors": {"d": 3.0}, "runs": 2},
        refused=(
            *(
                ("values", {"a": wrong, "b": 1.0, "c": 1.0}, "must be a finite number")
                for wrong in (float("nan"), float("inf"), "2", True, None)
            ),
            ("factors", {"a": "2"}, "must be a finite number"),
            ("choices", {"d": "retaingrad"}, "choose from 'nothing'"),
            ("runs", 21, "choose 0 to 20"),
            ("task", 4, "choose 0 to 3, or -1"),
            ("guesses", {"a": "twelve"}, "your guess of a.grad is 'twelve'"),
            ("guesses", {"z": "1"}, "no tensor 'z'"),
        ),
        calls=(
            (lambda each: each.set("z", retain_grad=True), "no tensor 'z'"),
            (lambda each: each.set("d", hook=float("nan")), "must be a finite number"),
            (lambda each: each.set("d", hook=2, first="last"), "first='last'"),
        ),
        together=False,
    ),
    "GradientPlayground, guess": Figure(
        lambda _: figures.GradientPlayground(guess=True),
        {"task": 1, "guesses": {"a": "120"}},
        secret=lambda _: (r"\ba\.grad 12\b", r"\bb\.grad 8\b"),
        reveal={"runs": 1},
        together=False,
    ),
    "GradInputExplorer": Figure(
        lambda _: figures.GradInputExplorer(),
        {"layer": "Conv2d", "bias": False},
        refused=(
            ("layer", "Linaer", "no layer 'Linaer'. Choose one of 'Linear'"),
            ("layer", "", "no layer ''"),
            ("inplace", True, "These layers have it: 'ReLU', 'Dropout'"),
            ("input_shape", (3, 5), "Pass (3, 4) or"),
            ("input_shape", (0, 4), "positive integers only"),
            ("input_shape", ("3", 4), "positive integers only"),
        ),
        calls=(
            (lambda _: figures.GradInputExplorer(shape=(3,)), "no attribute 'shape'"),
            (lambda _: figures.GradInputExplorer(nn.ReLU(), torch.ones(2)), "requires a gradient"),
            (lambda _: figures.GradInputExplorer(nn.ReLU, torch.ones(2)), "not the class"),
        ),
        secret=lambda _: ("They differ", "same here"),
        reveal={"answers": {'["Linear", [3, 4], true, false, true]': ["same", "different"]}},
        together=False,
    ),
    "PlayingMap": Figure(
        lambda _: figures.PlayingMap(),
        {"hooks": {"forward": "multiply", "tensor_x": "look"}, "index": 3},
        refused=(("hooks", {"foward": "look"}, "did you mean 'forward'?"), ("index", 99, "from 0 to")),
        calls=(
            (lambda play: play.place("foward"), "did you mean 'forward'?"),
            (lambda play: play.place("forward", "double"), "can 'look' or 'multiply'"),
            (lambda play: play.place("retain_grad", "multiply"), "takes no function"),
            (lambda play: play.move("tensor_x", "tensor_y"), "no hook at 'tensor_x'; there are hooks at: forward_pre"),
            (lambda play: play.move("forward", "forward_pre"), "already; remove('forward_pre')"),
            (lambda play: play.remove("tensor_x"), "no hook at 'tensor_x'"),
            (lambda play: play.choose("forward"), "PlayingMap(guess=True) does"),
            (lambda _: figures.hook_pass("full_backward").place("forward"), "there are: full_backward"),
            (lambda _: figures.hook_pass("full_backward", backward=False), "no place 'full_backward'"),
        ),
    ),
    "PlayingMap, guess": Figure(
        lambda _: figures.PlayingMap(["forward_pre", "forward"], guess=True),
        {"guesses": [["forward", "forward_pre"]], "index": 1},
        secret=lambda _: ("x.grad = ", "in this order"),
        reveal={"guesses": [["forward_pre"], ["forward"]]},
    ),
    "PlayingMap, forward": Figure(
        lambda _: figures.hook_pass("forward_pre", "forward", backward=False),
        {"hooks": {"forward": "look"}},
        secret=lambda _: ("grad", "ackward"),
    ),
    "TenTimesGame": Figure(
        lambda _: figures.TenTimesGame(),
        {"marks": {"forward": ["y", "weight.grad"]}, "revealed": ["forward"]},
        calls=(
            (lambda game: game.mark("forward", "bias.grad"), "there are: y, x.grad, weight.grad"),
            (lambda game: game.mark("foward", "y"), "did you mean 'forward'?"),
            (lambda game: game.run("tensor_x"), "there is no place 'tensor_x' for a hook"),
            (lambda _: figures.TenTimesGame(()), "kinds is empty"),
            (lambda _: figures.TenTimesGame("retain_grad"), "there is no place 'retain_grad' for a hook"),
            (lambda game: game.changes("full_backward"), "hidden until you have guessed; then call run('full_b"),
        ),
        secret=lambda _: (r"\b60\b", *map(re.escape, REASONS["forward"].values())),
        reveal={"revealed": ["forward"]},
        final=(("marks", {"forward": ["y"]}, "has been run, so its marks stay"),),
        together=False,
    ),
    "BothEnds": Figure(
        lambda _: figures.BothEnds(),
        {"stops": ["stop_output"], "plain": ["x1"], "marks": ["x2.grad"], "ran": True},
        refused=(
            ("stops", ["stop_weight"], "there are: stop_input, stop_output"),
            ("plain", ["W"], "there are: x1, x2"),
            ("marks", ["y"], "there are: x1.grad, x2.grad, W.grad"),
        ),
        secret=lambda _: (r"\b(15|10|6)\b",),
        reveal={"ran": True},
        final=(("marks", ["x1.grad"], "the marks stay; change a gate"),),
        hidden="gradients",
        boxes=lambda narrow: of_layout(both_ends._place(narrow)),
    ),
    "Bridge": Figure(
        lambda _: figures.Bridge(),
        {"place": 3},
        refused=(("place", 6, "the places are 0 to 5"),),
        calls=(
            (lambda each: each.move("backward hook"), "there are for"),
            (lambda _: figures.Bridge(bridge.RECORDED[:1]), "takes what two ranks returned"),
            (lambda _: figures.Bridge([{"weight": 1.0}] * 2), "takes what two ranks returned"),
        ),
        boxes=lambda narrow: of_layout(bridge._lay_out(narrow=narrow)),
    ),
    "GradientParts": Figure(
        lambda _: figures.GradientParts(),
        {"place": "step 2", "effect": "double", "guesses": {"got": "8"}, "ran": True},
        refused=(
            ("place", "h9", "choose from '', 'w', 'step 1'"),
            ("effect", "halve", "choose from 'look', 'double'"),
            ("guesses", {"x": "1"}, "what is asked: got, w.grad"),
        ),
        calls=((lambda _: figures.GradientParts("rnn"), "choose from steps, twice"),),
        secret=lambda _: (r"\b18\b", r"4 \+ 8 \+ 6"),
        reveal={"ran": True},
        final=(("guesses", {"w.grad": "1"}, "the guesses stay; move the hook"),),
        hidden="gradients",
        boxes=lambda narrow: of_layout(parts_layout.place_steps(narrow=narrow)),
    ),
    "GradientParts, twice": Figure(
        lambda _: figures.GradientParts("twice"),
        {"place": "y", "effect": "detach", "guesses": {"first": "8", "second": "8"}, "ran": True},
        secret=lambda _: (r"\b12\b",),
        reveal={"ran": True},
        hidden="gradients",
        boxes=lambda narrow: of_layout(parts_layout.place_twice(narrow=narrow)),
    ),
    "ResidualRiver": Figure(
        lambda net: figures.ResidualRiver(net, "the dogs near the cat"),
        {"text": "the bakers", "token": 1, "depth": 2, "tap": "blocks.0"},
        refused=(
            ("token", 6, "there are 6, counted from 0"),
            ("depth", -1, "there are 5, counted from 0"),
            ("tap", "blocks.2", "there are: tokens, positions, blocks.0.attn"),
            ("text", "the dgos", "did you mean 'dogs'"),
            ("text", " ".join(["the"] * 50), "the model reads at most 40"),
        ),
        model=LM,
        boxes=lambda narrow: of_river(river_layout.place_river(2, narrow)),
    ),
    "ResidualRiver, no lens": Figure(
        lambda net: figures.ResidualRiver(net, "the dogs near the cat", lens=False),
        {"token": 2},
        model=LM,
        secret=lambda _: (r"\b(run|sleep|sing|wait)\b", r"\blens\b"),
        reveal={"lens": True, "depth": 4},
    ),
    "SealedModels": Figure(
        lambda _: figures.SealedModels(),
        {"box": 2, "asked": [[], ["census"], [], []]},
        refused=(
            ("box", 5, "box"),
            ("asked", [["open"]], "pass a list for each box"),
            ("accused", [[], [], [], [["head"]]], "pass a list of [layer, mistake]"),
        ),
        calls=(
            (lambda boxes: boxes.ask("open"), "there are census, record"),
            (lambda boxes: boxes.accuse("tail", "it has no hook"), "there is no layer"),
            (lambda boxes: boxes.accuse("head", "it is tired"), "there is no mistake"),
        ),
        secret=lambda boxes: tuple(": ".join(boxes._right(box)) for box in range(1, 5)),
        is_random=True,
    ),
    "SteeredScans": Figure(
        lambda net: figures.SteeredScans(net, "block3", {"a": torch.ones(32, 7, 7), "b": torch.zeros(1)}, SCANS, 8),
        {"push": "b", "step": 20},
        refused=(("step", 21, "choose from 0 to 20"), ("push", "nowhere", "choose from 'a', 'b'")),
        calls=(
            (lambda _: figures.SteeredScans(DIGITS(), "block3", {}, SCANS, 8), "there is no push"),
            (lambda _: figures.SteeredScans(DIGITS(), "block9", {"a": PUSH}, SCANS, 8), "block9"),
            (lambda _: figures.SteeredScans(DIGITS(), "block3", {"a": torch.ones(3)}, SCANS, 8), "size of tensor"),
        ),
        model=DIGITS,
    ),
    "SteeringSlider": Figure(
        lambda net: figures.SteeringSlider(net, "blocks.0", PUSH, "the baker", VERBS),
        {"strength": 2},
        refused=(("strength", 0.3, "choose from"), ("place", "nowhere", "choose from 'every token'")),
        calls=(
            (
                lambda _: figures.SteeringSlider(LM(), "blocks.0", PUSH, "the", {"verbs": ("run",)}),
                "there are 1 groups",
            ),
            (lambda _: figures.SteeringSlider(LM(), "blocks.0", PUSH[1:], "the", VERBS), "size of tensor"),
        ),
        model=LM,
    ),
    "CacheGrid": Figure(
        lambda net: figures.CacheGrid(net, "transformer.h.0"),
        {"change": "output[:, -1]", "marks": ["0,0,4"], "ran": True},
        refused=(
            ("marks", ["0,1,3"], "there is no cell '0,1,3'"),
            ("change", "grad", "choose from 'output[:, 3]'"),
        ),
        model=gpt2,
        reveal={"ran": True},
        hidden="hits",
        is_random=True,
    ),
    "SymptomTree": Figure(
        lambda _: figures.SymptomTree("Memory grows"),
        {"path": ["My hook is not called", "no"]},
        refused=(
            ("path", ["no such symptom"], "is not one of"),
            ("path", ["Memory grows", "maybe"], "is not one of"),
            ("path", ["Memory grows", "yes", "yes"], "is not one of"),
        ),
    ),
    "TravelMap": Figure(
        lambda _: figures.TravelMap(),
        {"guesses": {"prune": "left"}, "visited": ["prune"], "at": "prune"},
        refused=(
            ("guesses", {"prune": "gone"}, "there is no fate 'gone'"),
            ("guesses", {"tokyo": "left"}, "there is no station 'tokyo'"),
            ("at", "tokyo", "there is no station 'tokyo'"),
        ),
        calls=((lambda each: each.visit("tokyo"), "there is no station 'tokyo'"),),
        secret=lambda _: (*(short for short, _ in FATES.values()), r"handle\.remove\(\)"),
        reveal={"visited": [*STATIONS]},
        final=(("guesses", {"prune": "follows"}, "was visited, so its guess stays"),),
        boxes=lambda narrow: of_travel(travel_map.place_stations(narrow=narrow)),
    ),
    "TwoRuns": Figure(
        figures.TwoRuns,
        {"at": [6, 14], "tried": [[6, 14]], "measure": "logits"},
        refused=(("at", [9, 0], "is no cell"), ("tried", [[0]], "is no cell"), ("measure", "cosine", "measure")),
        calls=(
            (lambda runs: runs.patch("norm", 1), "there are tokens"),
            (lambda runs: runs.patch("tokens", 15), "there are 15"),
            (lambda _: figures.TwoRuns(LM(), "the dogs near the cat", "the dogs near cat"), "5 and 4 words"),
            (lambda _: figures.TwoRuns(LM(), CLEAN, CLEAN.replace("park", "school")), "the answer to both"),
        ),
        model=LM,
        secret=lambda runs: tuple(f"{layer} at {position} " for layer, position in runs.red[1:]),
        reveal={"shown": True},
    ),
    "DigitsByLayer": Figure(
        by_layer,
        {"depth": 3, "digit": 8, "picked": 4},
        refused=(
            ("depth", 9, "0 to 8"),
            ("digit", 10, "0 to 9"),
            ("picked", 40, "-1 to 39"),
            ("network", "x", "trained"),
        ),
        calls=((lambda _: by_layer(DIGITS(), lambda output: output), "for pixels"),),
        model=DIGITS,
    ),
    "SentReceived": Figure(
        lambda net: figures.SentReceived(net, samples.digit(5)),
        {"place": "door", "picked": "sent"},
        refused=(("place", "roof", "place"), ("picked", "both", "picked")),
        calls=(
            (lambda _: figures.SentReceived(DigitReader(), NINE, layer="block2"), "receives (1, 16, 28, 28)"),
            (lambda _: figures.SentReceived(DigitReader(), NINE, layer="blok1"), "blok1"),
            (lambda _: figures.SentReceived(DigitReader(), NINE, layer="conv"), "picks 3 layers"),
            (lambda _: figures.SentReceived(DigitReader(), NINE[0]), "Pass one gray image"),
            (lambda _: figures.SentReceived(DigitReader(), [NINE]), "digit is list"),
        ),
        model=DigitReader,
    ),
    "SilenceChannel": Figure(
        lambda net: figures.SilenceChannel(net, samples.digit(1)),
        {"channel": 6, "factor": 0.5},
        refused=(("channel", 16, "Pass 0 to 15"), ("factor", 3.0, "Pass 0 to 2")),
        calls=((lambda _: figures.SilenceChannel(DIGITS(), NINE, "head"), "returns a tensor (1, 10)"),),
        model=DIGITS,
    ),
    "FoolingSquare": Figure(
        lambda net: figures.FoolingSquare(net, NINE),
        {"size": 5, "hinted": True},
        refused=(("size", 29, "Pass 0 to 28"), ("goal", 9, "pass one of")),
        calls=((lambda _: figures.FoolingSquare(DIGITS(), NINE, goal=9), "reads a 9 already"),),
        model=DIGITS,
    ),
    "SlidingFilter": Figure(
        lambda net: figures.SlidingFilter(net, samples.digit(5), channel=10),
        {"channel": 3, "row": 5, "column": 20, "filled": True},
        refused=(
            ("channel", 16, "Pass 0 to 15"),
            ("row", 28, "Pass 0 to 27"),
            ("answer", [28, 0], "pass a row and a column"),
            ("answer", [3], "pass a row and a column"),
        ),
        calls=(
            (lambda _: figures.SlidingFilter(DIGITS(), NINE, "block2.conv"), "with one input channel"),
            (lambda _: figures.SlidingFilter(DigitReader(), NINE, "network.block1.conv"), "get the digit itself"),
        ),
        model=DIGITS,
        together=False,
    ),
    "WhereItLooks": Figure(
        lambda net: figures.WhereItLooks(net, samples.digit(1), "block3", most=0.04),
        {"target": 1, "step": 5},
        refused=(("step", 21, "step=21"), ("target", 12, "target=12")),
        calls=(
            (lambda _: figures.WhereItLooks(DIGITS(), NINE, "block9"), "It has block1"),
            (lambda _: figures.WhereItLooks(DIGITS(), NINE, "head"), "does not return maps"),
            (lambda _: figures.WhereItLooks(DIGITS(), NINE, "block3", classes=[10]), "Pass classes from 0 to 9"),
        ),
        model=DIGITS,
    ),
    "Chooser": Figure(
        lambda _: figures.Chooser(),
        {"words": "gradient", "group": "debug"},
        refused=(("group", "x", "group"),),
        follows=False,
        has_picture=False,
    ),
    "FactCheck": Figure(
        lambda _: figures.FactCheck(),
        {"words": "hook", "group": "outdated"},
        refused=(("group", "x", "group"),),
        follows=False,
        has_picture=False,
    ),
    "AuthorSlider": Figure(
        lambda _: AuthorSlider("D4", "1.2.0"), {"document": "D0", "_at": 3}, refused=(("document", "D9", "D0, D1"),)
    ),
    "Counter": Figure(lambda _: smallest()(), {"count": 2}),
}
