"""The tree of a model as text: names, types, sizes, what is shared and what is hidden."""

import warnings

import pytest
from torch import nn

from hookscope.layers import find_layers, tree


def test_the_tree_shows_names_types_and_own_parameters(net):
    assert repr(tree(net)) == str(tree(net)), "a prompt shows it line by line"
    lines = tree(net).splitlines()
    assert lines[0].split() == ["(root)", "Net", "0"]
    assert lines[1].split() == ["conv1", "Conv2d", "20"]
    assert "    layer1.0          Block               0" in lines
    assert len(lines) == len(list(net.modules()))
    for line in lines[1:]:
        assert find_layers(net, line.split()[0])


def test_the_tree_can_be_cut_and_says_what_it_hides(net):
    assert tree(net, max_depth=0) == "(root)  Net  0  + 18 below"
    lines = tree(net, max_depth=1).splitlines()
    assert len(lines) == 7
    assert lines[3].split() == ["layer1", "Sequential", "0", "+", "8", "below"]
    assert lines[-1].split() == ["fc", "Linear", "9"]
    assert tree(net, max_depth=99) == tree(net)


def test_the_tree_marks_shared_lazy_and_odd_names(shared):
    assert tree(shared) == (
        "(root)     ModuleDict  0\n"
        "  a        ReLU        0\n"
        "  enc      Sequential  0\n"
        "    enc.0  Linear      6\n"
        "  b        ReLU        0  = a\n"
        "  dec      Sequential  0  = enc"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert tree(nn.LazyLinear(3)) == "(root)  LazyLinear  lazy"
    assert "a\\nb" in tree(nn.ModuleDict({"a\nb": nn.ReLU()}))
    assert "1,001,000" in tree(nn.Linear(1000, 1000))


@pytest.mark.parametrize(("depth", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (True, TypeError)])
def test_a_wrong_max_depth_is_refused(net, depth, error):
    with pytest.raises(error, match="max_depth"):
        tree(net, max_depth=depth)
