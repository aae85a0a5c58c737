"""Recordings as text, table, tree and picture."""

import sys

import pytest
import torch
from torch import nn

from hookscope.pictures.picture import Picture
from hookscope.recordings.call_tree import CallTree
from hookscope.recordings.event import Event
from hookscope.recordings.record import record
from tests.shared.awkward_models import Net
from tests.shared.fake_clock import count_python_calls
from tests.shared.recording_helpers import make_nested, make_ones


class SimpleModel(Net):
    """Its name is in the text."""


def walk_through():
    model = SimpleModel(lambda self, x: self.linear(x), linear=nn.Linear(4, 2))

    def forward_hook(module, args, output):
        pass

    model.linear.register_forward_hook(forward_hook)
    with record(model) as recording:
        recording.watch(model(make_ones(1, 4)), "y").sum().backward()
    return recording


def test_text_is_stable():
    assert repr(walk_through()) == (
        "SimpleModel: 10 events (5 forward, 5 backward)\n"
        " #  phase     kind               layer   type         call  shapes                 hook\n"
        "--  --------  -----------------  ------  -----------  ----  ---------------------  ------------\n"
        " 1  forward   forward_pre        (root)  SimpleModel     1  args ((1, 4),)\n"
        " 2  forward   forward_pre        linear  Linear          1  args ((1, 4),)\n"
        " 3  forward   forward            linear  Linear          1  output (1, 2)          forward_hook\n"
        " 4  forward   forward            linear  Linear          1  output (1, 2)\n"
        " 5  forward   forward            (root)  SimpleModel     1  output (1, 2)\n"
        " 6  backward  tensor             y       Tensor          1  grad (1, 2)\n"
        " 7  backward  full_backward_pre  (root)  SimpleModel     1  grad_output ((1, 2),)\n"
        " 8  backward  full_backward_pre  linear  Linear          1  grad_output ((1, 2),)\n"
        " 9  backward  full_backward      linear  Linear          1  grad_input ((1, 4),)\n"
        "10  backward  full_backward      (root)  SimpleModel     1  grad_input ((1, 4),)"
    )
    assert repr(record(nn.ReLU())) == (
        "ReLU: 0 events\nnote: the with block of this recording never ran. Call the model inside it"
    )


def test_the_call_tree_shows_what_runs_around_forward():
    tree = walk_through().call_tree()
    assert repr(tree) == (
        "forward\n"
        "└── (root): SimpleModel.__call__()\n"
        "    ├── [1] forward_pre  args ((1, 4),)\n"
        "    ├── forward()\n"
        "    │   └── linear: Linear.__call__()\n"
        "    │       ├── [2] forward_pre  args ((1, 4),)\n"
        "    │       ├── forward()\n"
        "    │       ├── [3] forward: forward_hook  output (1, 2)\n"
        "    │       └── [4] forward  output (1, 2)\n"
        "    └── [5] forward  output (1, 2)\n"
        "backward\n"
        "├── [6] tensor y  grad (1, 2)\n"
        "└── (root): SimpleModel\n"
        "    ├── [7] full_backward_pre  grad_output ((1, 2),)\n"
        "    ├── linear: Linear\n"
        "    │   ├── [8] full_backward_pre  grad_output ((1, 2),)\n"
        "    │   └── [9] full_backward  grad_input ((1, 4),)\n"
        "    └── [10] full_backward  grad_input ((1, 4),)"
    )
    assert tree._repr_mimebundle_()["text/plain"] == repr(tree)


def test_a_tree_cut_by_a_backward_pass_inside_forward():
    model = Net(lambda self, x: torch.autograd.grad(self.fc(x).sum(), x)[0], fc=nn.Linear(4, 2))
    with record(model) as recording:
        model(make_ones(1, 4))
    text = repr(recording.call_tree())
    assert [line for line in text.splitlines() if not line.startswith((" ", "├", "└"))] == [
        "forward",
        "backward",
        "forward",
    ]
    assert "did not return" not in text


def test_html_is_escaped():
    evil = "<img src=x onerror=alert(1)>"
    model = nn.Sequential()
    model.add_module(evil.replace(".", ""), nn.Linear(4, 2))

    def hook(*args):
        pass

    hook.__qualname__ = "<script>"
    model[0].register_forward_hook(hook)
    with record(model) as recording:
        recording.watch(model(make_ones(1, 4, grad=False)), "<b>").sum().backward()
    shown = [
        recording._repr_mimebundle_(),
        recording.call_tree()._repr_mimebundle_(),
        recording.picture()._repr_mimebundle_(),
    ]
    for bundle in shown:
        html = bundle["text/html"]
        assert not any(tag in html for tag in ("<img src=x", "<script>", "<b>"))
        assert "&lt;" in html
    assert "note: No input of layer &lt;img" in shown[0]["text/html"]
    assert shown[0]["text/plain"] == repr(recording)


def test_a_long_recording_shows_its_beginning():
    model = make_nested()
    with record(model) as recording:
        for _ in range(21):
            model(torch.ones(1, 4))
    assert len(recording.events) == 210
    text = repr(recording)
    assert text.startswith("Sequential: 210 events (210 forward); the first 200 of them\n")
    assert len(text.splitlines()) == 203


def test_the_timeline_says_in_words_what_it_draws():
    recording = walk_through()
    picture = recording.picture()
    assert isinstance(picture, Picture)
    assert picture.alt == (
        "The order in which 10 hooks fired. Forward: forward_pre (root), forward_pre linear, "
        "forward linear: forward_hook, forward linear, forward (root); backward: tensor y, "
        "full_backward_pre (root), full_backward_pre linear, full_backward linear, full_backward (root)."
    )
    assert [row["#"] for row in picture.rows] == list(range(1, 11))
    assert picture.png == recording.picture().png
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_the_timeline_of_a_long_recording_is_summed_up():
    model = make_nested()
    with record(model, parameters=True) as recording:
        for _ in range(5):
            model(make_ones(1, 4)).sum().backward()
    alt = recording.picture().alt
    assert alt.startswith("The order in which 140 hooks fired. Forward: forward_pre (root), forward_pre 0, 7 more, ")
    assert "6 more phases" in alt
    assert len(alt) < 600


def test_names_are_no_formulas_in_the_timeline():
    with record(nn.Identity(), kinds="forward") as recording:
        recording.watch(make_ones(1) * 1, r"$\nonsense{$").sum().backward()
    assert recording.picture().png


def test_the_backward_tree_nests_only_what_really_encloses():
    branches = {name: nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for name in ("left", "right")}
    model = Net(lambda self, x: self.left(x) + self.right(x), **branches)
    with record(model, kinds=["forward_pre", "forward", "full_backward_pre", "full_backward"]) as recording:
        y = model(make_ones(1, 1)).sum()
        y.backward(retain_graph=True)
        y.backward()
    passes = repr(recording.call_tree()).split("backward\n", 1)[1].split("(root): Net")[1:]
    assert len(passes) == 2, "the same graph run backward twice is two trees"
    for tree in passes:
        for line in tree.splitlines():
            if any(name in line for name in ("left.0", "right.0", "left.1", "right.1")):
                assert len(line) - len(line.lstrip(" │├└─")) > 8, line


def test_a_pre_hook_between_the_hooks_of_another_layer_says_whose_it_is():
    kinds = [("full_backward_pre", "a"), ("full_backward_pre", "b"), ("full_backward", "a"), ("full_backward", "b")]
    lines = repr(
        CallTree([Event(at, kind, name, "Linear", 1, "backward", None) for at, (kind, name) in enumerate(kinds, 1)])
    ).splitlines()
    for at, (kind, name) in enumerate(kinds, 1):
        place = next(place for place, line in enumerate(lines) if f"[{at}]" in line)
        owner = [line.strip(" │├└─") for line in lines[:place] if line.endswith(": Linear")][-1:]
        assert f"{kind} {name}" in lines[place] or owner == [f"{name}: Linear"], lines[place]


def _recorded(layers):
    model = nn.Sequential(*(nn.Identity() for _ in range(layers)))
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(torch.ones(1))
    return recording


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_thousands_of_layers_are_drawn_at_little_cost_and_shortened():
    few, many = _recorded(250), _recorded(2000)
    few.picture()  # the first imports matplotlib
    assert count_python_calls(many.picture) < 1.5 * count_python_calls(few.picture)
    assert "4002 events" in many.picture().caption
    assert len(many._repr_mimebundle_()["text/html"]) < 100_000


def test_a_long_call_tree_is_shortened_and_says_so():
    tanh = nn.Tanh()
    with record(tanh, kinds=("forward_pre", "forward")) as recording:
        for _ in range(400):
            tanh(make_ones(1))
    text = repr(recording.call_tree())
    # A line for the phase, and four for each call.
    assert text.count("\n") == 1000
    assert text.endswith("… and 601 more lines. All events are in .events; to see the tree, record fewer layers")
