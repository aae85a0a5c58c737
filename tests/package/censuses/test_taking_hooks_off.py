"""A census takes off what it lists, and nothing else."""

import pytest
import torch
import torch.nn.modules.module as torch_module

from hookscope.censuses.census import census
from hookscope.layers import LayerNotFoundError
from tests.package.censuses.census_helpers import do_nothing, list_kinds


def test_only_what_was_counted_goes(net):
    net.fc.register_forward_hook(do_nothing)
    early = census(net)
    later = net.fc.register_forward_hook(do_nothing)
    assert early.remove_all() == 1
    assert list(net.fc._forward_hooks) == [later.id]
    assert early.remove_all() == 0
    assert len(early) == 1


def test_kind_and_layer_choose(net):
    for layer in (net, net.conv1, net.fc):
        layer.register_forward_hook(do_nothing)
        layer.register_full_backward_hook(do_nothing)
    net.fc.bias.register_hook(do_nothing)
    torch_module.register_module_forward_hook(do_nothing)
    found = census(net)
    assert [entry.kind for entry in found.filter(layer="fc")] == ["forward", "full_backward", "tensor"]
    assert [entry.where for entry in found.filter(kind="forward")] == ["(root)", "conv1", "fc"]
    assert len(found.filter(kind="forward", layer="fc")) == 1
    assert [entry.where for entry in found.filter(layer="")] == ["(root)", "(root)"]
    assert len(found.filter(layer="bn")) == 0
    assert found.remove_all(kind="forward", layer="fc") == 1
    assert found.remove_all(layer="conv1") == 2
    assert found.remove_all(kind="tensor") == 1
    assert census(net).by_kind() == {"forward": 1, "full_backward": 2, "global forward": 1}
    assert found.by_kind() == {"forward": 3, "full_backward": 3, "tensor": 1, "global forward": 1}


def test_an_unknown_kind_or_layer_is_refused(net):
    with pytest.raises(ValueError, match=r"'forwards'\. Pass one of forward"):
        census(net).filter(kind="forwards")
    with pytest.raises(ValueError, match=r"forward_pre, forward, .*global"):
        census(net).remove_all(kind="xyz")
    with pytest.raises(LayerNotFoundError, match="did you mean 'conv1'") as caught:
        census(net).filter(layer="conv")
    assert caught.value.suggestions == ("conv1",)
    with pytest.raises(LayerNotFoundError):
        census().filter(layer="conv1")


@pytest.mark.parametrize("first", ["legacy", "full"])
def test_after_the_last_backward_hook_either_kind_may_come(net, first):
    layer = net.fc
    register = {"legacy": layer.register_backward_hook, "full": layer.register_full_backward_hook}
    other = register["full" if first == "legacy" else "legacy"]
    handle = register[first](do_nothing)
    kept = register[first](do_nothing)
    handle.remove()
    with pytest.raises(RuntimeError, match="Cannot use both"):
        other(do_nothing)
    census(net).remove_all(kind="forward")
    with pytest.raises(RuntimeError, match="Cannot use both"):
        other(do_nothing)
    assert census(net).remove_all() == 1
    assert kept.id not in layer._backward_hooks
    other(do_nothing)
    assert census(net)[0].kind == ("full_backward" if first == "legacy" else "backward (legacy)")


def test_the_global_latch_goes_too():
    torch_module.register_module_backward_hook(do_nothing)
    with pytest.raises(RuntimeError, match="Cannot use both"):
        torch_module.register_module_full_backward_hook(do_nothing)
    census().remove_all()
    torch_module.register_module_full_backward_hook(do_nothing)
    assert list_kinds() == ["global full_backward"]


def test_a_backward_hook_left_on_the_layer_keeps_its_kind(net):
    net.fc.register_backward_hook(do_nothing)
    found = census(net)
    net.fc.register_backward_hook(do_nothing)
    found.remove_all()
    assert list_kinds(net) == ["backward (legacy)"]


def test_a_full_backward_hook_still_fires_for_a_graph_built_before(net):
    """What the docstring warns of."""
    fired = []
    net.fc.register_full_backward_hook(lambda *args: fired.append("module"))
    net.fc.weight.register_hook(lambda grad: fired.append("tensor"))
    loss = net(torch.ones(2, 1, 3, 3)).sum()
    census(net).remove_all()
    assert len(census(net)) == 0
    loss.backward()
    assert fired == ["module"]
