"""A census is a sequence that can be read, as text, as HTML and in an error; and keeps nothing alive."""

import dataclasses
import functools
import gc
import weakref
from html.parser import HTMLParser

import pytest
import torch
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer
from torch import nn

from hookscope.censuses.census import Census, HookEntry, census
from tests.package.censuses.census_helpers import do_nothing, find_location


def test_a_census_is_a_sequence_that_does_not_change(net):
    net.fc.register_forward_hook(do_nothing)
    net.conv1.register_forward_pre_hook(do_nothing)
    found = census(net)
    assert isinstance(found, Census)
    assert len(found) == 2
    assert [entry.layer for entry in found] == ["conv1", "fc"]
    assert isinstance(found[0], HookEntry)
    assert isinstance(found[:1], Census)
    assert found[-1] in found
    assert list(found) == list(census(net))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found[0].kind = "forward"
    with pytest.raises(TypeError):
        found[0] = found[1]
    net.fc.register_forward_hook(do_nothing)
    assert len(found) == 2


def test_the_text_is_a_table_without_anything_that_changes_from_run_to_run(net):
    there = find_location(do_nothing)
    handle = net.fc.register_forward_hook(do_nothing)
    before = repr(census(net))
    assert before.splitlines() == [
        "1 hook on Net",
        f"kind     layer  callable    {'location':<{len(there)}}".rstrip(),
        f"-------  -----  ----------  {'-' * len(there)}",
        f"forward  fc     do_nothing  {there}",
    ]
    assert "_id" not in repr(census(net)[0])
    entry = repr(census(net)[0])
    handle.remove()
    net.fc.register_forward_hook(do_nothing)
    assert (repr(census(net)), repr(census(net)[0])) == (before, entry)
    assert str(census(net)[0]) == f"forward hook do_nothing on fc ({there})"


def test_an_empty_census_says_so(net):
    assert repr(census(net)) == "0 hooks on Net"
    assert repr(census()) == "0 global hooks"
    assert repr(census(include_global=False)) == "0 global hooks"
    assert repr(census(net, torch.optim.SGD(net.parameters()))) == "0 hooks on Net, SGD"
    assert "0 hooks on Net" in census(net)._repr_mimebundle_()["text/html"]
    census(net).assert_none()


def test_global_hooks_are_counted_apart(net):
    torch_module.register_module_forward_hook(do_nothing)
    assert repr(census(net)).splitlines()[0] == "0 hooks on Net and 1 global hook"
    net.register_forward_hook(do_nothing)
    torch_optimizer.register_optimizer_step_pre_hook(do_nothing)
    assert repr(census(net)).splitlines()[0] == "1 hook on Net and 2 global hooks"
    assert repr(census(net, include_global=False)).splitlines()[0] == "1 hook on Net"
    assert repr(census()).splitlines()[0] == "2 global hooks"


def test_the_html_is_a_table_with_headers_and_escaped():
    model = nn.ModuleDict({"<img src=x onerror=alert(1)>": nn.ReLU()})
    next(model.children()).register_forward_hook(do_nothing)
    bundle = census(model)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(census(model))

    class Tags(HTMLParser):
        seen = ()

        def handle_starttag(self, tag, attributes):
            self.seen += ((tag, *dict(attributes).get("scope", "").split()),)

    tags = Tags()
    tags.feed(bundle["text/html"])
    assert ("th", "col") in tags.seen
    assert ("th", "row") in tags.seen
    assert ("caption",) in tags.seen
    assert not any(tag[0] == "img" for tag in tags.seen)


def test_assert_none_says_what_where_and_the_way_out(net):
    net.fc.register_forward_hook(do_nothing)
    with pytest.raises(AssertionError) as caught:
        census(net).assert_none("End of the chapter")
    lines = str(caught.value).splitlines()
    assert lines[0] == "End of the chapter: 1 hook on Net"
    assert lines[1].startswith(f"  forward hook do_nothing on fc ({find_location(do_nothing)})")
    assert "remove()" in lines[2]
    assert "remove_all()" in lines[2]
    for _ in range(40):
        net.fc.register_forward_hook(do_nothing)
    with pytest.raises(AssertionError, match=r"41 hooks on Net(\n.*){20}\n  and 21 more\n"):
        census(net).assert_none()


@pytest.mark.parametrize("target", ["resnet18", None, [], nn.Linear])
def test_other_things_are_refused(target):
    with pytest.raises(TypeError, match="models, optimizers and tensors"):
        census(target)


def test_a_census_keeps_nothing_alive():
    big = torch.ones(10)
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(functools.partial(do_nothing, big))
    found = census(model)
    gone = [weakref.ref(model), weakref.ref(big)]
    del model, big
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert found.remove_all() == 0
    assert "partial(do_nothing)" in repr(found)
