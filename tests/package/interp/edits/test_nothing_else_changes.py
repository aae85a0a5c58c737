"""What an edit is not aimed at stays bit for bit, and nothing stays on the model, however the block ends."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census, edit

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("hand", [lambda held: held, lambda held: held.view(-1).view(3, 4), lambda held: held.detach()])
def test_what_a_function_returns_is_not_written_to_by_what_comes_next(hand) -> None:
    net, held = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), -torch.ones(3, 4)
    with torch.no_grad(), edit(net) as e:
        e.map("0", lambda t: hand(held))
        net(X)
    assert (held == -1).all()
    with torch.no_grad(), edit(net) as e:
        e.set("0", held)
        net(X)
    with torch.no_grad(), edit(net) as e:
        e.swap("0", held)
        net(X)
    assert (held == -1).all()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()), nn.Linear(4, 4))


def test_a_census_lists_edits() -> None:
    net = small()
    with edit(net) as e:
        e.set("0", 0)
        found = [entry for entry in census(net) if entry.callable == "hookscope.edit"]
        net(X)
    assert [(entry.layer, entry.kind) for entry in found if entry.layer] == [("0", "forward_pre"), ("0", "forward")]
    assert not len(census(net))


def test_edits_nest_and_the_inner_one_sees_what_the_outer_one_made() -> None:
    net = nn.Sequential(nn.Identity())
    with edit(net) as outer:
        outer.add("0", 1)
        with edit(net) as inner:
            inner.scale("0", 2)
            assert torch.equal(net(X), (X + 1) * 2)
        assert torch.equal(net(X), X + 1)
    assert not len(census(net))


def test_hooks_of_the_owner_come_before_edits_and_stay() -> None:
    net = nn.Sequential(nn.Identity())
    net[0].register_forward_hook(lambda module, args, output: output + 5)
    with edit(net) as e:
        e.scale("0", 0)
        assert not net(X).any()
    assert torch.equal(net(X), X + 5)


def test_a_capture_inside_sees_edited_values_and_one_around_the_layers_own() -> None:
    net = small()
    with capture(net, inputs=True) as around, edit(net) as e, capture(net, inputs=True) as inside:
        e.set("0", 7)
        e.set("2", 3, to="input")
        net(X)
    assert (inside["0"].output == 7).all()
    assert not (around["0"].output == 7).any()
    assert (inside["2"].args[0] == 3).all()
    assert not (around["2"].args[0] == 3).any()


@pytest.mark.parametrize("which", ["layers.0.linear2", "mine", "m*", "itself"])
def test_a_fused_layer_is_said_whatever_name_of_what_is_inside_is_asked_for(which: str) -> None:
    net = nn.Module()
    net.mine = nn.Identity()  # before the encoder, so that this name is the first
    net.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)])
    net.mine = net.layers[0].linear2
    net.eval()
    e = edit(net)
    e.scale(net.mine if which == "itself" else which, 1.0)
    with torch.no_grad(), pytest.warns(UserWarning, match="hooks switch off the fused path of layer 'layers.0'"), e:
        net.layers[0](torch.randn(2, 5, 8))
    with e:  # with gradients there is no fused path
        net.layers[0](torch.randn(2, 5, 8))
    assert not any("fused" in note for note in e.notes)


def test_hooks_that_another_thread_is_taking_off_do_nothing() -> None:
    net = nn.Sequential(nn.Identity())
    with edit(net) as e:
        e.add("0", 0.5)
        e.add("0", 0.5, to="input")
        changed = net(X)
        for options in (net[0]._forward_pre_hooks_with_kwargs, net[0]._forward_hooks_with_kwargs):
            options.clear()  # as that thread has just done, while this one holds a list of the hooks
        assert torch.equal(net(X), X)
    assert torch.equal(changed, X + 1)
