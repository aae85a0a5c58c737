"""Every figure, one row each: how it is made, what a reader does with it, and what Python knows then."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Locator

from tests.shared.figure_page import FigurePage

HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that attacks a page which takes it for more than a text."""


@dataclass(frozen=True)
class Figure:
    """One figure and its controls.

    Attributes:
        label: what its region says of itself.
        code: makes it; the last line returns it.
        clicks: what a reader clicks, one after the other, as Playwright finds it.
        reads: what is printed to see what Python knows.
        clicked: what that is after the clicks.
        focus: where the keyboard begins.
        keys: what is pressed then.
        pressed: what Python knows after the keys.
        pane: whether it fits into what JupyterLab shows at 1280×720, so that nobody has to scroll in it.
        touch: whether its words are drawn in a scene, where they must not touch.
        alone: whether it works without a kernel.

    """

    label: str
    code: str
    clicks: tuple[str, ...]
    reads: str
    clicked: str
    focus: str
    keys: tuple[str, ...]
    pressed: str
    pane: bool = True
    touch: bool = False
    alone: bool = True


def draw(figures: FigurePage, name: str, *more: str) -> Locator:
    """Draw a figure on an empty page, after it what further cells return, and give its region."""
    figure = FIGURES[name]
    figures.scratch(figure.code, *more)
    return figures.stage(figure.label)


FIGURES: dict[str, Figure] = {
    "PlayingMap": Figure(
        "The map that plays",
        """
from hookscope_course.figures import PlayingMap
play = PlayingMap({'forward_pre': 'look', 'forward': 'multiply', 'full_backward': 'look'})
play.speed = 8
play
""",
        ("button[aria-label=Next]", ".sc-peg[data-kind=forward_pre]"),
        "play.index, play.hooks['forward_pre']",
        "0 multiply",
        "[role=slider], input[type=range]",
        ("End", "ArrowLeft"),
        "8 look",
        touch=True,
    ),
    "PlayingMap, guess": Figure(
        "The map that plays",
        """
from hookscope_course.figures import PlayingMap
quiz = PlayingMap(['forward_pre', 'forward', 'full_backward'], guess=True)
quiz.speed = 8
quiz
""",
        (".sc-peg[data-kind=forward]", ".sc-peg[data-kind=forward_pre]"),
        "quiz.index, quiz.guesses",
        "1 [['forward', 'forward_pre']]",
        ".sc-peg[data-kind=forward_pre]",
        ("Enter",),
        "1 [['forward_pre']]",
        touch=True,
    ),
    "TenTimesGame": Figure(
        "The ten-times table",
        "from hookscope_course.figures import TenTimesGame\ngame = TenTimesGame()\ngame",
        ("button[aria-label='the forward pre-hook changes y']", "button:has-text('Run'):visible >> nth=0"),
        "game.marks, game.revealed",
        "{'forward_pre': ['y']} ['forward_pre']",
        "button[aria-label='the forward pre-hook changes y']",
        ("Space", "ArrowRight", "Space"),
        "{'forward_pre': ['y', 'x.grad']} []",
    ),
    "BothEnds": Figure(
        "Both ends of a module",
        "from hookscope_course.figures import BothEnds\nends = BothEnds()\nends",
        ("[data-gate=stop_input]", "[data-end='x1.grad']", "button:has-text('Run backward')"),
        "ends.stops, ends.marks, ends.ran",
        "['stop_input'] ['x1.grad'] True",
        "[data-gate=stop_output]",
        ("ArrowDown", "Tab", "Tab", "Space", "Tab", "Enter", "Tab", "Space", "Tab", "Enter"),
        "['stop_output'] ['x1.grad', 'x2.grad', 'W.grad'] True",
        touch=True,
    ),
    "Bridge": Figure(
        "The bridge",
        "from hookscope_course.figures import Bridge\nbridge = Bridge()\nbridge",
        (".sc-slot >> nth=9 >> circle",),
        "bridge.place",
        "3",
        ".sc-peg[data-rank='1']",
        ("ArrowRight", "ArrowDown", "ArrowUp", "End"),
        "5",
        touch=True,
    ),
    "hook_pass": Figure(
        "The map that plays",
        """
from hookscope_course.figures import hook_pass
small = hook_pass('full_backward_pre', 'full_backward')
small.speed = 8
small
""",
        (".sc-play",),
        "small.index",
        "8",
        ".sc-peg[data-kind=full_backward]",
        ("Enter",),
        "0",
        touch=False,
    ),
    "GradientParts": Figure(
        "Parts of a gradient",
        """
from hookscope_course.figures import GradientParts
parts = GradientParts()
parts
""",
        ("[data-peg=main]",),
        "parts.place, parts.effect, parts.ran",
        "double False",
        "[data-peg=main]",
        ("ArrowUp", "ArrowLeft", "Enter"),
        "step 2 double False",
        touch=True,
    ),
    "GradientParts, twice": Figure(
        "A gradient of a gradient",
        """
from hookscope_course.figures import GradientParts
twice = GradientParts('twice')
twice
""",
        (),
        "twice.effect, twice.ran",
        "look False",
        "select",
        ("ArrowDown", "ArrowDown"),
        "double False",
        touch=True,
    ),
    "ResidualRiver": Figure(
        "The residual river",
        """
from hookscope import samples
from hookscope_course.figures import ResidualRiver
lm = samples.story_lm()
river = ResidualRiver(lm, 'the dogs near the cat')
river
""",
        ("[data-tap='blocks.1.mlp']",),
        "river.tap",
        "blocks.1.mlp",
        "[data-tap][tabindex='0']",
        ("ArrowRight", "ArrowUp", "ArrowLeft"),
        "positions",
    ),
    "SealedModels": Figure(
        "Four sealed models",
        """
from hookscope_course.figures import SealedModels
boxes = SealedModels()
boxes
""",
        ("[data-question=record]",),
        "boxes.box, boxes.asked",
        "1 [['record'], [], [], []]",
        "[data-question=census]",
        ("Enter",),
        "1 [['census'], [], [], []]",
    ),
    "SymptomTree": Figure(
        "The symptom tree",
        """
from hookscope_course.figures import SymptomTree
tree = SymptomTree()
tree
""",
        (
            ".st-step >> nth=0",
            ".st-ask .st-step >> nth=0",
        ),
        "tree.path",
        "['My hook is not called', 'no']",
        ".st-step",
        ("Tab", "Enter"),
        "['My hook is called too often']",
        pane=False,
    ),
    "SteeringSlider": Figure(
        "Steer it",
        """
import torch
from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course.figures import SteeringSlider
lm, kept = samples.story_lm(), []
with lm.blocks[0].register_forward_hook(lambda module, args, output: kept.append(output[:, 2].mean(0).detach())):
    for nouns in (MANY, ONE):
        lm(torch.cat([samples.story_tokens(f"the {noun} near the cat") for noun in nouns[:4]]))
verbs, places = {"plural verbs": MANY_DO, "singular verbs": ONE_DOES}, {"every token": None, "baker only": 2}
slider = SteeringSlider(lm, "blocks.0", kept[0] - kept[1], "the baker near the friend", verbs, places=places)
slider
""",
        ("button:has-text('baker only')",),
        "slider.place, slider.strength",
        "baker only 0.0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"),
        "every token 1.0",
    ),
    "CacheGrid": Figure(
        "The cache as a grid",
        """
from hookscope_course.figures import CacheGrid

from transformers import GPT2Config, GPT2LMHeadModel
gpt = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100, bos_token_id=None, eos_token_id=None))
grid = CacheGrid(gpt.eval(), "transformer.h.0")
grid
""",
        (
            "button:has-text('output[:, -1]')",
            "button[aria-label='with the cache, call 1, token 4']",
            "button:has-text('Run generate()')",
        ),
        "grid.change, grid.marks, grid.ran",
        "output[:, -1] ['0,0,4'] True",
        "button[aria-label='with the cache, call 1, token 4']",
        ("ArrowDown", "Space"),
        "output[:, 3] ['0,1,5'] False",
    ),
    "SteeredScans": Figure(
        "Scans that are pushed",
        """
from hookscope import samples
from hookscope_course.figures import SteeredScans
import torch
net, (images, labels) = samples.digit_cnn(), samples.digits("train")
with torch.no_grad():
    outputs = net.block3(net.block2(net.block1(images)))
push = outputs[labels == 8].mean(0) - outputs[labels == 3].mean(0)
test = samples.digits("test")
pushes = {"toward 8": push, "nothing": 0 * push}
scans = SteeredScans(net, "block3", pushes, test.images[test.labels == 3][:24], 8, marked=[0])
scans
""",
        ("button:has-text('nothing')",),
        "scans.push, scans.step",
        "nothing 0",
        "input[type=range]",
        ("End", "ArrowLeft"),
        "toward 8 19",
    ),
    "TravelMap": Figure(
        "The travel map",
        """
from hookscope_course.figures import TravelMap
journey = TravelMap()
journey
""",
        (".tm-fates button >> nth=1",),
        "journey.at, journey.guesses",
        "state_dict {'deepcopy': 'stays'}",
        "[role=button][tabindex='0'], button[tabindex='0']",
        ("ArrowRight", "Enter", "Enter"),
        "quantize {'export': 'follows'}",
    ),
    "TwoRuns": Figure(
        "Two runs and one arrow",
        """
from hookscope_course.figures import TwoRuns
runs = TwoRuns()
runs
""",
        (".tr-cell[data-cell='tokens 10'] >> nth=1",),
        "runs.tried, runs.at",
        "[[0, 10]] [0, 10]",
        ".tr-cell[tabindex='0']",
        (
            "Home",
            "ArrowUp",
            "End",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "Enter",
        ),
        "[[6, 14]] [6, 14]",
        touch=True,
    ),
    "SentReceived": Figure(
        "Sent and received",
        """
from torch import nn
from hookscope import samples
from hookscope_course.figures import SentReceived
class DigitReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = samples.digit_cnn()
    def forward(self, scan):
        return self.network(1 - scan)
figure = SentReceived(DigitReader(), samples.digit(5))
figure
""",
        (".se-received .se-pick",),
        "figure.picked, figure.place",
        "received layer",
        ".se-received .se-pick",
        ("Enter",),
        "received layer",
        alone=False,
    ),
    "SilenceChannel": Figure(
        "Silence a channel",
        """
from hookscope import samples
from hookscope_course.figures import SilenceChannel
net, one = samples.digit_cnn(), samples.digit(1)
figure = SilenceChannel(net, one)
figure
""",
        (
            ".si-tile >> nth=6",
            "button:has-text('Silence')",
        ),
        "figure.channel, figure.factor",
        "6 0.0",
        ".si-tile[tabindex='0']",
        ("ArrowDown", "ArrowRight"),
        "9 1.0",
        alone=False,
    ),
    "FoolingSquare": Figure(
        "The square that fools",
        """
from hookscope import samples
from hookscope_course.figures import FoolingSquare
net, nine = samples.digit_cnn(), samples.digit(9)
figure = FoolingSquare(net, nine, goal=4)
figure
""",
        (".sq-pad",),
        "figure.size, figure.tries",
        "7 1",
        ".sq-pad",
        ("-", "-", "ArrowDown", "ArrowRight"),
        "6 4",
        alone=False,
    ),
    "SlidingFilter": Figure(
        "The sliding filter",
        """
from hookscope import samples
from hookscope_course.figures import SlidingFilter
net, five = samples.digit_cnn(), samples.digit(5)
figure = SlidingFilter(net, five, channel=10, guess=True)
figure
""",
        (
            "button:has-text('Skip the question')",
            "button:has-text('Fill the map')",
        ),
        "figure.asks, figure.filled, figure.answer",
        "False True []",
        ".sf-pad",
        ("ArrowUp", "ArrowLeft", "Enter"),
        "True False [13, 13]",
        alone=False,
    ),
    "WhereItLooks": Figure(
        "Where it looks",
        """
from hookscope import samples
from hookscope_course.figures import WhereItLooks
net, one = samples.digit_cnn(), samples.digit(1)
figure = WhereItLooks(net, one, "block3", most=0.04)
figure
""",
        ("button:text-is('1')",),
        "figure.target, figure.step",
        "1 0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight"),
        "8 2",
        alone=False,
    ),
    "DigitsByLayer": Figure(
        "Where a digit becomes its class",
        """
from hookscope import samples
from hookscope_course.figures import DigitsByLayer
train, test = samples.digits("train"), samples.digits("test")
known = train.images[:360], train.labels[:360]
networks = {"trained": samples.digit_cnn(), "untrained": samples.digit_cnn(trained=False)}
figure = DigitsByLayer(networks, lambda output: output.mean(dim=(2, 3)), known, test)
figure
""",
        (
            "button:text-is('untrained')",
            "[aria-label=eights]",
        ),
        "figure.network, figure.digit, figure.depth",
        "untrained 8 0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"),
        "trained 5 7",
    ),
    "CallSource": Figure(
        "What a call runs",
        """
from hookscope_course.figures import CallSource
source = CallSource()
source
""",
        ("button >> nth=1",),
        "source.way, source.step",
        "forward 1",
        "button >> nth=0",
        ("Tab", "Enter"),
        "forward 1",
        pane=False,
    ),
    "GradientPlayground": Figure(
        "Gradient playground",
        """
from hookscope_course.figures import GradientPlayground
playground = GradientPlayground()
playground
""",
        ("button:has-text('Run backward')",),
        "playground.runs, playground.choices",
        "2 {}",
        "select >> nth=1",
        ("ArrowDown",),
        "1 {'a': 'retain_grad'}",
        pane=False,
        alone=False,
    ),
    "GradientPlayground, guess": Figure(
        "Gradient playground",
        """
from hookscope_course.figures import GradientPlayground
playground = GradientPlayground(guess=True)
playground
""",
        (),
        "playground.runs, playground.guesses",
        "0 {}",
        "input[aria-label^='your guess of a']",
        ("1", "2", "Enter"),
        "0 {'a': '12'}",
        pane=False,
        alone=False,
    ),
    "GradInputExplorer": Figure(
        "The graph with both hooks in it",
        """
from hookscope_course.figures import GradInputExplorer
explorer = GradInputExplorer()
explorer
""",
        ("button:text-is('different')",),
        "explorer.layer, explorer.bias, explorer.answers",
        "Linear True {'[\"Linear\", [3, 4], true, false, true]': ['different', 'different']}",
        "input[type=checkbox] >> nth=0",
        ("Space",),
        "Linear False {}",
        pane=False,
        alone=False,
    ),
    "LayerPicker": Figure(
        "Layer picker",
        """
from hookscope import samples
from hookscope.widgets import LayerPicker
picker = LayerPicker(samples.digit_cnn(), samples.digit(5))
picker
""",
        ("[role=option] >> nth=5",),
        "picker.layer, picker.channel",
        "block2.conv -1",
        "[role=listbox]",
        ("Home", "ArrowDown", "ArrowDown"),
        "block1.conv -1",
        pane=False,
        alone=False,
    ),
    "OrderPlayer": Figure(
        "Order player",
        """
import torch
from torch import nn
import hookscope
from hookscope.widgets import OrderPlayer
block = nn.Sequential()
block.add_module("<img src=x onerror=alert(1)>", nn.Linear(4, 3))
block.add_module("relu", nn.ReLU())
model = nn.Sequential(block, nn.Linear(3, 2))
x = torch.ones(1, 4, requires_grad=True)
with hookscope.record(model, values=True) as recording:
    model(x).sum().backward()
player = OrderPlayer(recording)
player
""",
        ("button:has-text('Last')",),
        "player.index",
        "19",
        "[role=listbox]",
        ("Home", "ArrowDown", "ArrowRight"),
        "2",
        pane=False,
    ),
    "AttentionPicker": Figure(
        "Attention picker",
        """
import torch
from torch import nn
import hookscope
from hookscope.widgets import AttentionPicker
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
net = nn.Sequential(layer, nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
tokens = ["<img src=x onerror=alert(1)>", "cat", "sat", "down"]
maps = hookscope.attention(net, torch.randn(1, 4, 16), tokens=tokens)
picker = AttentionPicker(maps)
picker
""",
        (),
        "picker.layer, picker.head",
        "0.self_attn 0",
        "select >> nth=1",
        ("ArrowDown", "ArrowDown", "ArrowDown"),
        "0.self_attn 3",
        pane=False,
        alone=False,
    ),
    "PatchMap": Figure(
        "Patch map",
        """
import torch
from torch import nn
import hookscope
from hookscope.widgets import PatchMap
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)])
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
net = Words().eval()
ids, others = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 7, 3, 4, 5]])
tokens = ["the", "<img src=x onerror=alert(1)>", "sat", "down", "there"]
vocabulary = ["zero", "the", "cat", "sat", "down", "there", "six", "<b>dog</b>", "eight"]
calls = []
def metric(logits):
    calls.append(1)
    if len(calls) == 21:
        raise KeyboardInterrupt
    return logits[0, -1, 2]
layers, five = ["embed", "blocks.*"], range(5)
options = hookscope.SweepOptions(tokens=tokens)
found = hookscope.sweep(
    net.train(), ids, layers=layers, source=others, positions=five, metric=metric, options=options
)
patches = PatchMap(found, vocabulary=vocabulary, layer="embed", column=1)
patches
""",
        ("[role=gridcell] >> nth=7",),
        "patches.layer, patches.column",
        "blocks.0 2",
        "[role=grid]",
        ("Home", "ArrowDown"),
        "blocks.0 0",
        pane=False,
        alone=False,
    ),
    "TokenPicker": Figure(
        "Token picker",
        """
import torch
from torch import nn
from hookscope.widgets import TokenPicker
torch.manual_seed(0)
words = ["<img src=x onerror=alert(1)>", "cat", "sat", "down", " ", "mat"]
layers = [nn.TransformerEncoderLayer(16, heads, 32, batch_first=True) for heads in (4, 4, 2)]
net = nn.Sequential(nn.Embedding(6, 16), nn.Sequential(*layers), nn.LayerNorm(16), nn.Linear(16, 6))
picker = TokenPicker(net, torch.arange(6)[None], vocabulary=words)
picker
""",
        ("[role=option] >> nth=1",),
        "picker.token, picker.layer",
        "1 1.2",
        ".tk-map",
        ("ArrowUp", "ArrowLeft"),
        "4 1.1",
        pane=False,
        alone=False,
    ),
    "Chooser": Figure(
        "The chooser",
        """
from hookscope_course.figures import Chooser
chooser = Chooser()
chooser
""",
        ("button:text-is('Debug')",),
        "chooser.group",
        "debug",
        "button:text-is('Debug')",
        ("Enter",),
        "debug",
        pane=False,
    ),
    "FactCheck": Figure(
        "The fact check",
        """
from hookscope_course.figures import FactCheck
facts = FactCheck()
facts
""",
        ("button:has-text('outdated')",),
        "facts.group",
        "outdated",
        "button:has-text('outdated')",
        ("Enter",),
        "outdated",
        pane=False,
    ),
    "AuthorSlider": Figure(
        "What the author would have seen",
        """
from hookscope_course.figures.author_slider.figure import AuthorSlider
author = AuthorSlider("D4", "1.2.0")
author
""",
        (),
        "author.document, author.release",
        "D4 1.2.0",
        "input[type=range]",
        ("ArrowLeft",),
        "D4 1.1.0",
        pane=False,
        alone=False,
    ),
}
