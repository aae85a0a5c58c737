"""The pictures of chapter 08: they say what torch does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope_course.figures.module_nodes import draw_nest, draw_two_nodes


class Nest(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential()
        self.block.linear = nn.Linear(1, 1)
        self.block.relu = nn.ReLU()
        self.head = nn.Linear(1, 1)


def fire(requires_grad: bool) -> list[tuple[str, bool]]:
    """Return the modules in the order of their hooks, and whether each got a gradient of its input."""
    net, fired = Nest(), list[tuple[str, bool]]()
    for name, module in net.named_modules():
        module.register_full_backward_hook(
            lambda module, grad_input, grad_output, name=name or "(root)": fired.append(
                (name, grad_input[0] is not None)
            )
        )
    net(torch.ones(1, 1, requires_grad=requires_grad)).sum().backward()
    return fired


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_fire_from_right_to_left(requires_grad: bool) -> None:
    fired = fire(requires_grad)
    no_wait = [name for name, waited in fired if not waited]
    picture = draw_nest([name for name, _ in fired], no_wait)
    assert [(row["module"], row["at its"]) for row in picture.rows] == [
        (name, "input" if waited else "output") for name, waited in fired
    ]
    assert f"1 {fired[0][0]} at its {'input' if requires_grad else 'output'}" in picture.alt
    # The picture says that the hooks fire from right to left: the places are those of the drawing.
    from hookscope_course.figures.module_nodes import _NEST

    places = [_NEST[name][0] + (0 if waited else _NEST[name][2]) for name, waited in fired]
    assert places == sorted(places, reverse=True)


def test_what_is_not_in_the_nest_is_refused() -> None:
    with pytest.raises(ValueError, match="the modules are"):
        draw_nest(["head"])
    with pytest.raises(ValueError, match="the modules are"):
        draw_nest([name for name, _ in fire(True)], ["tail"])


def test_a_gradient_of_h_n_goes_around_the_first_node() -> None:
    lstm, fired = nn.LSTM(1, 1), list[str]()
    for row in draw_two_nodes().rows:
        fired.clear()
        x = torch.ones(1, 1, 1, requires_grad=True)
        with lstm.register_full_backward_hook(lambda *_: fired.append("hook")):
            output, (h_n, _) = lstm(x)
            {"output": output, "h_n": h_n}[str(row["gradient of"])].sum().backward()
        assert x.grad is not None, "the gradient reaches x either way"
        assert row["your hook"] == ("fires" if fired else "does not fire")
    assert "goes around the first node" in draw_two_nodes().alt
