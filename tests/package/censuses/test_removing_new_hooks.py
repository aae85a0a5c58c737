"""`removing_new_hooks` takes off what was registered inside its block, also after an exception, and nothing else."""

import threading
import types

import pytest
import torch
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from hookscope.censuses.census import census, removing_new_hooks
from tests.package.censuses.census_helpers import Net, do_nothing, find_location
from tests.shared import PATIENCE


def test_new_hooks_go_and_old_ones_stay(net):
    old = net.fc.register_forward_hook(do_nothing)
    with removing_new_hooks(net) as removed:
        net.fc.register_forward_hook(print)
        net.conv1.weight.register_hook(do_nothing)
        assert removed == []
    assert [str(entry).split(" (")[0] for entry in removed] == [
        "tensor hook do_nothing on conv1.weight",
        "forward hook print on fc",
    ]
    assert list(net.fc._forward_hooks) == [old.id]
    assert len(census(net)) == 1


def test_hooks_that_nobody_named_go_too(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        net.fc.register_full_backward_hook(do_nothing)
        leaf.register_hook(do_nothing)
        leaf.register_post_accumulate_grad_hook(do_nothing)
        inner = leaf * 2
        inner.register_hook(do_nothing)
        optimizer.register_step_pre_hook(do_nothing)
        net.register_load_state_dict_post_hook(do_nothing)
        torch_module.register_module_forward_pre_hook(do_nothing)
        torch_optimizer.register_optimizer_step_post_hook(do_nothing)
        torch.autograd.graph.register_multi_grad_hook([leaf], do_nothing)
    assert [entry.kind for entry in removed] == [
        "full_backward",
        "tensor",
        "post_accumulate_grad",
        "tensor",
        "optimizer step_pre",
        "load_state_dict_post",
        "global forward_pre",
        "global optimizer step_post",
        "tensor",
    ]
    assert str(removed[0]) == f"full_backward hook do_nothing on (Linear) ({find_location(do_nothing)})"
    assert [entry.owner for entry in removed[-4:]] == ["Net", "", "", "Tensor"]
    assert len(census(net, optimizer, leaf, inner)) == 0
    net.fc.register_backward_hook(do_nothing)  # the latch is lifted here as well


def test_hooks_on_nodes_and_on_tensors_that_only_the_graph_holds():
    fired = []
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        inner = leaf * 2
        inner.register_hook(lambda grad: fired.append("tensor"))
        loss = inner * 3
        loss.grad_fn.register_hook(lambda gi, go: fired.append("node"))
        loss.grad_fn.register_prehook(lambda go: fired.append("node pre"))
        del inner
    assert sorted(entry.kind for entry in removed) == ["node", "node", "tensor"]
    loss.backward()
    assert fired == []


def test_a_model_that_can_no_longer_be_read_does_not_keep_its_hooks(net):
    leaf = torch.ones(1, requires_grad=True)

    def block():
        with removing_new_hooks(net):
            leaf.register_hook(do_nothing)
            torch_module.register_module_forward_hook(do_nothing)
            del net._modules

    with pytest.raises(AttributeError):
        block()
    assert len(census(leaf)) == 0


def test_hooks_registered_from_code_without_a_module_name():
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        exec(
            "from collections import OrderedDict\nkept = OrderedDict()\nhandle = Handle(kept)",
            {"Handle": RemovableHandle},
        )
        leaf.register_hook(do_nothing)
    assert len(removed) == 1


def test_blocks_may_be_nested(net):
    with removing_new_hooks() as outer:
        net.fc.register_forward_hook(do_nothing)
        with removing_new_hooks() as inner:
            net.conv1.register_forward_hook(do_nothing)
        assert len(census(net)) == 1
        net.conv1.register_forward_hook(do_nothing)  # the outer block watches on
    assert [len(inner), len(outer)] == [1, 2]
    assert len(census(net)) == 0


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_backward_hook"])
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_backward_hooks_from_before_still_work_for_a_graph_built_inside(net, register):
    """Torch hangs them on the graph's nodes during forward, through handles like any other."""
    fired = []
    getattr(net.fc, register)(lambda *args: fired.append("module"))
    with removing_new_hooks(net) as removed:
        loss = net(torch.ones(2, 1, 3, 3)).sum()
    loss.backward()
    assert fired == ["module"]
    assert removed == []


def test_hooks_of_another_kind_of_handle_stay(net):
    """CUDA graphs and dynamo keep objects alive by handles in dicts of their own."""
    kept = types.SimpleNamespace(hooks=__import__("collections").OrderedDict())
    with removing_new_hooks() as removed:
        handle = RemovableHandle(kept.hooks)
        kept.hooks[handle.id] = do_nothing
    assert removed == []
    assert list(kept.hooks) == [handle.id]


def test_another_threads_hooks_stay_unless_the_model_is_named(net):
    other = Net()
    inside, done = threading.Event(), threading.Event()

    def work():
        inside.wait(PATIENCE)
        net.fc.register_forward_hook(do_nothing)
        other.fc.register_forward_hook(do_nothing)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with removing_new_hooks(net) as removed:
        inside.set()
        assert done.wait(PATIENCE)
    thread.join()
    assert [entry.where for entry in removed] == ["fc"]
    assert (len(census(net)), len(census(other))) == (0, 1)


def test_many_threads_at_once():
    models = [Net() for _ in range(8)]
    counts = []

    def work(model):
        for _ in range(20):
            with removing_new_hooks() as removed:
                model.fc.register_forward_hook(do_nothing)
                model.fc.weight.register_hook(do_nothing)
            counts.append(len(removed))
        model.conv1.register_forward_hook(do_nothing)

    threads = [threading.Thread(target=work, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2] * 160
    assert [len(census(model)) for model in models] == [1] * 8


def test_somebody_else_may_watch_the_handles_meanwhile(net):
    """A wrapper put around ours and taken away later leaves torch as it was, and watching works on."""
    torchs = RemovableHandle.__init__
    calls = []
    first = removing_new_hooks()
    first.__enter__()
    ours = RemovableHandle.__init__

    def theirs(self, *args, **kwargs):
        calls.append(self)
        ours(self, *args, **kwargs)

    RemovableHandle.__init__ = theirs
    first.__exit__(None, None, None)
    assert RemovableHandle.__init__ is theirs
    net.fc.register_forward_hook(do_nothing)
    assert (len(calls), len(census(net))) == (1, 1)
    RemovableHandle.__init__ = ours
    with removing_new_hooks() as removed:
        net.fc.register_forward_hook(do_nothing)
    assert len(removed) == 1
    assert RemovableHandle.__init__ is torchs


def test_a_wrong_model_is_refused_before_anything_is_watched():
    with pytest.raises(TypeError, match=r"census got list.*census\(\*models\)"), removing_new_hooks(["net"]):
        pass
    with pytest.raises(TypeError, match="census got str"), removing_new_hooks("net"):
        pytest.fail("the block must not run")
