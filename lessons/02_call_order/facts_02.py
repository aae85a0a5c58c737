"""What chapter 02 says of its pictures, run."""

from warnings import catch_warnings

import torch
from torch import nn

import hookscope
from hookscope import samples
from hookscope_course.figures.nested_modules import draw_nesting


def test_block_3_opens_at_9_and_closes_at_16(says):
    says(
        "Put a finger on number 9, where the block opens, and on 16, where it closes.",
        "Where does number 12 move if the image requires grad?",
    )
    net, five = samples.digit_cnn(), samples.digit(5)
    with hookscope.record(net, "block3", "block3.*") as recording:
        net(five).max().backward()
    rows = {row["fires"]: (row["hook"], row["of"]) for row in draw_nesting(recording).rows}
    assert rows[9] == ("full_backward_pre", "block3")
    assert rows[16] == ("full_backward", "block3")
    with hookscope.record(net, "", "block?", "head") as whole:
        net(five).max().backward()
    rows = {row["fires"]: (row["hook"], row["of"]) for row in draw_nesting(whole).rows}
    assert rows[12] == ("full_backward", "(root)")
    assert "full_backward" not in [row["hook"] for row in draw_nesting(whole).rows[:11]]


def test_the_weight_comes_first_only_if_the_input_requires_grad(says):
    says("if `x` does not require grad, the full backward hook fires first.")
    for requires_grad, order in ((True, ["weight", "layer"]), (False, ["layer", "weight"])):
        layer, fired = nn.Linear(1, 1, bias=False), list[str]()
        layer.register_full_backward_hook(lambda *_, fired=fired: fired.append("layer"))
        layer.weight.register_post_accumulate_grad_hook(lambda _, fired=fired: fired.append("weight"))
        with catch_warnings(action="ignore"):
            layer(torch.ones(1, 1, requires_grad=requires_grad)).sum().backward()
        assert fired == order
