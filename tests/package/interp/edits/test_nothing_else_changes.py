"""What an edit is not aimed at stays bit for bit, and nothing stays on the model, however the block ends."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from hookscope import at, capture, census, edit
from tests.shared.awkward import Do, Net

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

SHARING = {
    "Identity": (nn.Identity(), lambda x: x),
    "Dropout in eval": (nn.Dropout(0.5).eval(), lambda x: x),
    "an empty Sequential": (nn.Sequential(), lambda x: x),
    "a view": (Do(lambda x: x[:]), lambda x: x),
    "an alias without grad": (Do(lambda x: x.detach()), lambda x: x),
    "an expanded view": (Do(lambda x: x[:1].expand(3, 4)), lambda x: x[:1].expand(3, 4)),
}


@pytest.mark.parametrize("name", sorted(SHARING))
@pytest.mark.parametrize("to", ["output", "input"])
def test_what_shares_memory_with_the_output_is_not_written_to(name: str, to: str) -> None:
    leaf, returns = SHARING[name]
    net = Net(lambda self, x: self.leaf(x) + 1000 * x, leaf=leaf)
    x = X.clone()
    with edit(net) as e:
        e.map("leaf", lambda t: t.zero_(), at[:, 1], to=to)
        e.set("leaf", 0, at[:, 2], to=to)
        y = net(x)
    expected = returns(X).clone()
    expected[:, 1:3] = 0
    assert torch.equal(x, X), "the skip connection got what it always gets"
    assert torch.equal(y, expected + 1000 * X)


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(-1), nn.ReLU()])
def test_what_a_layer_saved_for_backward_is_not_written_to(layer: nn.Module) -> None:
    x = X.clone().requires_grad_()
    with edit(nn.Sequential(layer)) as e:
        e.map("0", lambda t: t.mul_(2), at[:, 1:])
        e.modules.model(x).square().sum().backward()
    mine = X.clone().requires_grad_()
    out = layer(mine)
    torch.cat([out[:, :1], out[:, 1:] * 2], 1).square().sum().backward()
    torch.testing.assert_close(x.grad, mine.grad)


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


def test_a_gradient_edit_does_not_outlive_the_block() -> None:
    net, x = small(), X.clone().requires_grad_()
    with edit(net) as e:
        e.scale("0", 100.0, to="grad")
        net(x).sum().backward(retain_graph=True)
        kept = net(x)
    edited, x.grad = x.grad, None
    kept.sum().backward()
    torch.testing.assert_close(edited, x.grad * 100)


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


def test_a_model_is_not_copied_while_it_is_edited_and_is_not_kept_alive_afterwards() -> None:
    net = small()
    with edit(net) as e:
        e.set("0", 0)
        net(X)
        with pytest.raises(RuntimeError, match="is being edited, and a copy would keep the hooks"):
            copy.deepcopy(net)
    copy.deepcopy(net)
    gone = weakref.ref(net)
    del net, e
    gc.collect()
    assert gone() is None


def test_a_fused_layer_works_and_says_that_it_is_not_fused() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    net = nn.TransformerEncoder(layer, 2).eval()
    x, pad = torch.randn(2, 5, 8), torch.tensor([[False] * 4 + [True], [False] * 5])
    e = edit(net)
    e.scale("layers.0.linear1", 0.0)
    with torch.no_grad(), pytest.warns(UserWarning, match="hooks switch off the fused path of layer 'layers.0'"), e:
        y = net(x)
    with torch.no_grad(), pytest.warns(UserWarning, match="fused path"), e:
        padded = net(x, src_key_padding_mask=pad)
    with torch.no_grad():
        net.layers[0].linear1.weight.zero_()
        net.layers[0].linear1.bias.zero_()
        torch.testing.assert_close(y, net(x))
        torch.testing.assert_close(padded, net(x, src_key_padding_mask=pad))
        assert not torch.equal(y, padded)


def test_threads_do_not_confuse_each_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    deep = Net(lambda self, x, depth=20: self(x, depth - 1) if depth else x)

    def run(number: int) -> Tensor:
        return deep(X * number)

    with ThreadPoolExecutor(4) as pool, edit(deep) as e:
        e.add("", 1)
        results = list(pool.map(run, range(50)))
    for number, result in enumerate(results):
        torch.testing.assert_close(result, X * number + 21)


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
