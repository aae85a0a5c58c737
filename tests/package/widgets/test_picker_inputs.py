"""Inputs that a model cannot take are refused by the layer picker with what is expected, and the way out works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope.widgets import LayerPicker
from hookscope.wrong_inputs import WrongInputError
from tests.shared.awkward_models import Do

FLAT = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
FIXES: list[tuple[nn.Module | None, Any, str, Callable[[Any], Any]]] = [
    (None, np.zeros((1, 1, 28, 28), "f4"), "a NumPy array of shape (1, 1, 28, 28)", lambda x: torch.from_numpy(x)),
    (None, np.zeros((1, 1, 28, 28)), "Pass torch.from_numpy(x).float()", lambda x: torch.from_numpy(x).float()),
    (None, torch.zeros(1, 28, 28), "no batch axis: block1.conv (Conv2d) expects (N, 1, H, W)", lambda x: x[None]),
    (None, torch.zeros(28, 28), "To add axes, pass x[None, None]", lambda x: x[None, None]),
    (
        None,
        torch.zeros(1, 3, 28, 28),
        "block1.conv (Conv2d) expects 1 channel, shape (N, 1, H, W), but its input has shape (1, 3, 28, 28)",
        lambda x: x.mean(1, keepdim=True),
    ),
    (nn.Conv2d(3, 2, 3), torch.zeros(1, 1, 8, 8), "pass x.expand(-1, 3, -1, -1)", lambda x: x.expand(-1, 3, -1, -1)),
    (nn.Conv2d(3, 2, 3), torch.zeros(2, 8, 9, 3), "come last, so pass x.movedim(-1, 1)", lambda x: x.movedim(-1, 1)),
    (nn.Conv2d(3, 2, 3), torch.zeros(3, 8, 8), "has no batch axis: the model (Conv2d)", lambda x: x[None]),
    (nn.Conv1d(3, 2, 3), torch.zeros(3, 8), "expects (N, 3, L)", lambda x: x[None]),
    (None, torch.zeros(1, 1, 28, 28).double(), "has dtype torch.float64. Pass x.float()", lambda x: x.float()),
    (None, torch.zeros(1, 1, 28, 28).byte(), "divide by 255", lambda x: x.float() / 255),
    (nn.Linear(4, 2).double(), torch.zeros(1, 4), "Pass x.to(torch.float64)", lambda x: x.to(torch.float64)),
    (FLAT, torch.zeros(1, 1, 30, 30), "1 (Linear) expects 784 features", lambda x: x[..., 1:29, 1:29]),
    (nn.LSTM(4, 5), torch.zeros(2, 3, 3), "(LSTM) expects 4 features", lambda x: torch.zeros(2, 3, 4)),
    (nn.Embedding(4, 2), torch.zeros(2, 3), "Pass x.long()", lambda x: x.long()),
    (nn.Embedding(4, 2), torch.tensor([[5]]), "from 0 to 3, but its input has values from 5 to 5", lambda x: x - 2),
    (None, [torch.zeros(1, 1, 28, 28)], "the input is a list of length 1", lambda x: torch.cat(x)),
    (None, None, "the input is None", lambda x: samples.digit(5)),
]  # fmt: skip


@pytest.mark.parametrize(("model", "given", "words", "fixed"), FIXES, ids=[fix[2][-36:] for fix in FIXES])
def test_a_wrong_input_is_refused_and_the_way_out_works(
    model: nn.Module | None, given: Any, words: str, fixed: Callable[[Any], Any]
) -> None:
    model = samples.digit_cnn() if model is None else model
    with pytest.raises(WrongInputError) as caught:
        LayerPicker(model, given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(hookscope.census(model)) == 0
    assert not LayerPicker(model, fixed(given)).problem


class Reader(nn.Module):
    """A model that takes token ids, as most language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.attend(x, x, x)[0].sum((1, 2))


TOOLS: dict[str, Callable[[nn.Module, Any], object]] = {
    "attention": hookscope.attention,
    "profile": hookscope.profile,
    "compare_backward_hooks": hookscope.compare_backward_hooks,
    "sweep": lambda model, x: hookscope.sweep(model, x, layers="embed", source="zero", metric=lambda y: y[0]),
    "LayerPicker": LayerPicker,
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("the cat", "Reader got a str and no tensor. Pass the token ids"),
        (["the", "cat"], "Reader got a list and no tensor. Pass the token ids"),
        (nn.Linear, "Reader got the class Linear and no tensor. Pass the tensors"),
        (nn.Linear(2, 2), "Reader got a Linear and no tensor"),
        (None, "the input is None. Pass the arguments of Reader"),
        (np.zeros((1, 2)), "the input is a NumPy array of shape (1, 2), but Reader takes tensors"),
        (torch.zeros(1, 2), "embed (Embedding) expects integers, but its input has dtype torch.float32. Pass x.long()"),
        ({"ids": torch.zeros(1, 2)}, "the input is a dict with the keys 'ids'. Pass it as kwargs=inputs"),
    ],
    ids=["str", "strings", "class", "layer", "None", "array", "dtype", "dict"],
)
def test_each_tool_that_runs_the_model_says_what_is_wrong_with_an_input(
    tool: Callable[[nn.Module, Any], object], given: Any, words: str
) -> None:
    model = Reader()
    with pytest.raises(WrongInputError) as caught:
        tool(model, given)
    assert words in str(caught.value)
    assert len(hookscope.census(model)) == 0


def test_a_model_that_takes_text_gets_it() -> None:
    reads = Do(lambda text: torch.tensor([[float(len(text))]]))
    assert hookscope.profile(nn.Sequential(reads, nn.Linear(1, 1)), "the cat", repeats=1)["1"].flops == 2


def test_a_picker_without_an_input_asks_for_one() -> None:
    with pytest.raises(WrongInputError, match=r"got no input. Pass its arguments after the model"):
        LayerPicker(samples.digit_cnn())


def test_a_model_that_takes_one_image_or_no_tensor_is_let_alone() -> None:
    stacks = Do(lambda x: torch.stack([torch.from_numpy(one).float() for one in x]))
    picker = LayerPicker(nn.Sequential(stacks, nn.Conv2d(1, 2, 3)), [np.zeros((1, 8, 8))], layer="1")
    assert picker.activation.shape == (1, 2, 6, 6)
    adds = nn.Sequential(Do(lambda x: x[None]), nn.Conv2d(1, 2, 3))
    assert LayerPicker(adds, torch.zeros(1, 8, 8), layer="1").activation.shape == (1, 2, 6, 6)


def test_what_the_inputs_do_not_explain_is_raised_as_it_is() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("out of patience")

    with pytest.raises(RuntimeError, match="out of patience"):
        LayerPicker(nn.Sequential(nn.Linear(2, 2), Do(fails)), torch.zeros(1, 2))


def test_a_notebook_shows_the_sentence_alone() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    try:
        with capture_output() as shown:
            shell.run_cell(
                "import torch\nfrom hookscope import samples\nfrom hookscope.widgets import LayerPicker\n"
                "LayerPicker(samples.digit_cnn(), torch.zeros(1, 28, 28))"
            )
    finally:
        InteractiveShell.clear_instance()
    assert shown.stdout.strip().splitlines() == [
        "WrongInputError: the input of shape (1, 28, 28) has no batch axis: block1.conv (Conv2d) expects (N, 1, H, W). "
        "Pass x[None], of shape (1, 1, 28, 28). See https://hookscope.github.io/hookscope/errors/no_batch_axis.html"
    ]
