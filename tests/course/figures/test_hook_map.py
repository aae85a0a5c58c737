"""The map of hooks: what it says of the order is what torch does, and nothing on it runs into anything else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope.pictures.picture import Picture
from hookscope_course import hook_map
from hookscope_course.figures.hook_map import KINDS, _draw, _fired


def test_the_order_is_that_of_hooks_registered_by_hand() -> None:
    layer, x, order = nn.Linear(2, 1, bias=False), torch.ones(1, 2, requires_grad=True), []
    layer.register_forward_pre_hook(lambda *_: order.append("forward pre-hook the module"))
    layer.register_forward_hook(lambda *_: order.append("forward hook the module"))
    layer.register_full_backward_pre_hook(lambda *_: order.append("full backward pre-hook the module"))
    layer.register_full_backward_hook(lambda *_: order.append("full backward hook the module"))
    layer.weight.register_hook(lambda _: order.append("tensor hook weight"))
    layer.weight.register_post_accumulate_grad_hook(lambda _: order.append("post-accumulate hook weight"))
    x.register_hook(lambda _: order.append("tensor hook x"))
    y = layer(x)
    y.register_hook(lambda _: order.append("tensor hook y"))
    y.sum().backward()
    rows = [row for row in hook_map().rows if row["hook"] != KINDS["retain_grad"].name]
    assert [f"{row['hook']} {row['on']}" for row in rows] == order


def test_every_name_on_it_is_torch_s() -> None:
    for kind in KINDS.values():
        owner, _, name = kind.register.partition(".")
        assert hasattr({"module": nn.Module, "tensor": torch.Tensor}[owner], name)


@pytest.mark.parametrize("here", [(), ("forward",), ("tensor", "retain_grad"), tuple(KINDS)])
def test_you_are_here_in_the_picture_in_words_and_in_the_table(here: tuple[str, ...]) -> None:
    picture = hook_map(*here)
    assert isinstance(picture, Picture)
    for kind in here:
        assert KINDS[kind].name in picture.alt.partition("You are here")[2]
    assert {row["hook"] for row in picture.rows if row.get("you are")} == {KINDS[kind].name for kind in here}
    assert (len({picture.png, hook_map().png}) == 2) == bool(here)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("here", [(), *((kind,) for kind in KINDS)])
def test_no_words_run_into_each_other_or_over_the_edge(here: tuple[str, ...], both: bool) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _draw(_fired()[: None if both else 2], here, both)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.axes[0].texts if text.get_text()]
    width, height = figure.get_size_inches() * figure.dpi
    for at, (words, box) in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= width, words
        assert 0 <= box.y0 < box.y1 <= height, words
        for others, other in boxes[at + 1 :]:
            assert not box.overlaps(other), (words, others)


def test_before_the_way_back_is_taught_it_is_not_given_away() -> None:
    half = hook_map("forward", backward=False)
    assert [row["hook"] for row in half.rows] == ["forward pre-hook", "forward hook"]
    assert "ackward" not in half.alt + half.caption


def test_another_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no kind of hook 'foward'; did you mean 'forward'\?"):
        hook_map("foward")
    with pytest.raises(ValueError, match="no kind of hook 'x'; there are: forward_pre, forward, tensor"):
        hook_map("x")


def test_drawing_it_leaves_random_numbers_and_hooks_alone() -> None:
    before = torch.get_rng_state()
    with torch.no_grad():
        hook_map("forward")
    assert torch.equal(torch.get_rng_state(), before)
    assert not nn.modules.module._global_forward_hooks


def test_the_heading_says_what_is_in_the_table() -> None:
    assert "<summary>The hooks in the picture</summary>" in hook_map("forward").to_html()
