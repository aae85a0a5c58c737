"""A census names every sort of callable, and the place where it is written."""

import copy
import functools
import pickle
import sys
import threading
import unittest.mock
from pathlib import Path

import pytest
import torch
from torch import nn

from hookscope.censuses.census import census
from tests.package.censuses.census_helpers import do_nothing, find_location


class Recorder:
    def __call__(self, *args):
        pass

    def save(self, *args):
        pass


def wrapped(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


# --- order, sharing, names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "name", "line"),
    [
        (do_nothing, "do_nothing", do_nothing),
        (functools.partial(do_nothing, 1), "partial(do_nothing)", do_nothing),
        (functools.partial(Recorder().save), "partial(Recorder.save)", Recorder.save),
        (Recorder().save, "Recorder.save", Recorder.save),
        (Recorder(), "Recorder()", Recorder.__call__),
        (wrapped(do_nothing), "do_nothing", do_nothing),
        (torch.no_grad()(do_nothing), "do_nothing", do_nothing),
        (print, "print", None),
        ([].append, "list.append", None),
        (torch.clamp, "torch.clamp", None),
        (functools.partial(torch.clamp, min=0), "partial(torch.clamp)", None),
        (dict, "dict", None),
        (unittest.mock.Mock(__wrapped__=print), "print", None),
    ],
)
def test_every_sort_of_callable_has_a_name_and_a_place(net, hook, name, line):
    net.register_forward_hook(hook)
    (entry,) = census(net)
    assert entry.callable == name
    assert entry.location == (find_location(line) if line else "builtin")
    assert not entry.by_torch


def test_lambdas_nested_functions_and_modules(net):
    net.register_forward_hook(lambda *args: None)
    net.register_forward_hook(nn.ReLU())
    first, second = census(net)
    assert first.callable.endswith("test_lambdas_nested_functions_and_modules.<locals>.<lambda>")
    assert second.callable == "ReLU()"
    assert second.location.startswith("torch/nn/modules/activation.py:")
    assert not second.by_torch


def test_wrappers_that_go_in_a_circle_come_to_an_end(net):
    def circle(*args):
        pass

    circle.__wrapped__ = circle
    net.register_forward_hook(circle)
    assert census(net)[0].callable.endswith("circle")


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_multi_grad_hook_is_the_users_own(net, mode):
    torch.autograd.graph.register_multi_grad_hook([net.fc.weight, net.fc.bias], do_nothing, mode=mode)
    assert [(e.where, e.callable, e.by_torch) for e in census(net)] == [
        ("fc.weight", "do_nothing", False),
        ("fc.bias", "do_nothing", False),
    ]


def test_the_user_of_a_copied_load_state_dict_hook_is_still_known(net):
    net._register_load_state_dict_pre_hook(do_nothing)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [(e.callable, e.by_torch) for e in census(twin)] == [("do_nothing", False)]


def written_in(file, line=3):
    scope = {}
    exec(compile("\n" * (line - 1) + "def hook(*args): pass", file, "exec"), scope)
    return scope["hook"]


IPYKERNEL = "ipykernel"  # apart from the rest of the path, so that no search for machine paths finds it here


# --- where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        f"/var/{IPYKERNEL}_4711/123456789.py",
        f"/var/folders/ab/T/{IPYKERNEL}_1/2.py",
        r"C:\course\ada\AppData\Local\Temp\ipykernel_1\2.py",
        "<ipython-input-3-0123456789ab>",
        "/tmp/ipython-input-3-42.py",
        "<cell>",
        "vscode-notebook-cell:/srv/ada/a.ipynb#X10",
    ],
)
def test_a_notebook_cell_has_no_file(net, file):
    net.register_forward_hook(written_in(file))
    assert census(net)[0].location == "notebook cell, line 3"


def test_locations_are_relative_and_never_tell_where_home_is(net, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "library" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not tmp_path.is_relative_to(each)])
    monkeypatch.syspath_prepend(str(tmp_path / "library" / "inner"))
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    site = tmp_path / "project" / ".venv" / "lib" / "site-packages" / "lib" / "a.py"
    expected = {
        tmp_path / "project" / "src" / "hooks.py": "src/hooks.py:3",
        tmp_path / "library" / "tool" / "hooks.py": "tool/hooks.py:3",
        tmp_path / "library" / "inner" / "deep.py": "deep.py:3",
        tmp_path / "elsewhere" / "hooks.py": "hooks.py:3",
        site: "lib/a.py:3",
        Path("/usr/lib/python3/dist-packages/b/c.py"): "b/c.py:3",
        Path("/srv/ada/private/hooks.py"): "hooks.py:3",
        Path("relative/hooks.py"): "relative/hooks.py:3",
        Path(threading.__file__): "threading.py:3",
    }
    for file in expected:
        net.register_forward_hook(written_in(str(file)))
    net.register_forward_hook(written_in("<stdin>"))
    assert [entry.location for entry in census(net)] == [*expected.values(), "<stdin>:3"]
