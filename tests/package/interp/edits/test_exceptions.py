"""Exceptions and interrupts in layers, hooks and functions, while entering and while leaving, leave nothing behind."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import edit
from tests.package.promises.test_hooks_off import every_kind_of_edit, raising_in_the_middle, state
from tests.shared.awkward_models import Do


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_function_of_an_edit_that_raises_leaves_nothing(kind: type[BaseException]) -> None:
    def fail(*given: Any) -> None:
        raise kind

    for to in ("output", "input", "grad"):
        net = raising_in_the_middle().eval()
        before, e = state(net), every_kind_of_edit(net)
        e.map("second", fail, to=to)
        with pytest.raises(kind), e:
            net(torch.tensor([[1, 2, 3]])).sum().backward()
        assert state(net) == before


@pytest.mark.filterwarnings("ignore:hookscope")
def test_a_pass_that_raised_does_not_say_how_many_samples_a_later_call_has() -> None:
    def fail(x: Tensor) -> None:
        raise ValueError

    net = nn.Sequential(nn.Linear(3, 3), Do(fail))
    with edit(net) as e:
        e.set("0", 0.0, samples=[1])
        with suppress(ValueError):
            net(torch.ones(4, 3))
        found = net[0](torch.ones(2, 3))
    assert not found[1].any()
    assert any("the number of samples is unknown" in note for note in e.notes)
