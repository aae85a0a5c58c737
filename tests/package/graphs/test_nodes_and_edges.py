"""The graph behind a tensor: every node and edge as torch has them, by name; nothing is kept or added."""

import gc
import weakref

import pytest
import torch
from torch import nn

from hookscope.censuses.census import census
from hookscope.graphs import Edge, graph
from tests.package.graphs.graph_helpers import Block, get_tree_text


def names(g):
    return [node.name for node in g.nodes]


def test_nodes_and_edges_of_a_small_network():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    g = graph(model(torch.ones(3, 4)).sum(), model=model)
    assert names(g) == [
        "SumBackward0", "ReluBackward0", "AddmmBackward0", "AccumulateGrad", "TBackward0", "AccumulateGrad",
    ]  # fmt: skip
    assert [node.id for node in g.nodes] == list(range(6))
    assert [node.label for node in g.nodes] == ["", "", "", "0.bias", "", "0.weight"]
    assert [node.shapes for node in g.nodes] == [((),), ((3, 5),), ((3, 5),), ((5,),), ((4, 5),), ((5, 4),)]
    assert [node.inputs for node in g.nodes] == [1, 1, 3, 0, 1, 0]
    # The data needs no gradient: next_functions[1] of addmm is None, no edge.
    assert g.edges == (Edge(0, 0, 1, 0), Edge(1, 0, 2, 0), Edge(2, 0, 3, 0), Edge(2, 2, 4, 0), Edge(4, 0, 5, 0))
    assert [node.id for node in g.leaves] == [3, 5]
    assert g.caption.startswith("Autograd graph behind a tensor of shape (): 6 nodes, 5 edges, 2 leaves.\n")


def test_a_shared_node_is_one_node():
    x = torch.ones(2, requires_grad=True)
    h = x * 3
    g = graph(h.exp() + h * h, names={"x": x, "h": h})
    assert names(g) == ["AddBackward0", "ExpBackward0", "MulBackward0", "AccumulateGrad", "MulBackward0"]
    assert g.edges[-2:] == (Edge(4, 0, 2, 0), Edge(4, 1, 2, 0))
    assert get_tree_text(g) == [
        "0 AddBackward0  (2,)",
        "  1 ExpBackward0  (2,)",
        "    2 MulBackward0  h (2,)",
        "      3 AccumulateGrad  x (2,)",
        "  4 MulBackward0  (2,)",
        "    2 MulBackward0  (see above)",
    ]
    assert "n4 --> n2" in g.to_mermaid()
    assert graph(x + x).edges == (Edge(0, 0, 1, 0), Edge(0, 1, 1, 0))


def test_a_node_with_several_outputs():
    x = torch.ones(4, 2, requires_grad=True)
    first, second = x.split(2)
    g = graph(first.sum() * second.sum(), names={"first": first, "second": second})
    split = next(node for node in g.nodes if node.name == "SplitBackward0")
    assert split.shapes == ((2, 2), (2, 2))
    assert split.label == "first, second"
    assert {(edge.target, edge.input_nr) for edge in g.edges if edge.target == split.id} == {
        (split.id, 0),
        (split.id, 1),
    }


def test_names_come_before_the_models_and_first_names_first():
    shared = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(shared, shared)
    out = model(torch.ones(1, 2))
    assert [leaf.label for leaf in graph(out, model=model).leaves] == ["0.weight"]
    assert [leaf.label for leaf in graph(out, {"W": shared.weight}, model).leaves] == ["W"]
    assert [leaf.label for leaf in graph(out).leaves] == [""]
    assert graph(shared.weight, {"W": shared.weight}, model).nodes[0].label == "W"
    assert "Not in this graph: 1.weight" not in repr(graph(out, model=model))


def test_buffer_that_requires_a_gradient_is_named():
    model = nn.Module()
    model.register_buffer("scale", torch.ones(2, requires_grad=True))
    model.register_buffer("other", torch.ones(2))
    g = graph(model.scale * model.other, model=model)
    assert [leaf.label for leaf in g.leaves] == ["scale"]
    assert len(g.notes) == 1


def test_tensors_that_are_not_in_the_graph_are_said():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    elsewhere = torch.ones(2, requires_grad=True) * 2
    g = graph(model["used"](torch.ones(1, 2)), {"elsewhere": elsewhere}, model)
    assert "not in this graph: elsewhere, unused.weight, unused.bias, frozen.weight, frozen.bias." in g.notes[0]
    many = nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
    assert "0.weight, 0.bias, 1.weight, 1.bias, 2.weight and 3 more." in graph(elsewhere, model=many).notes[0]


def test_hooks_that_can_be_seen():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(print)
    x.register_post_accumulate_grad_hook(print)
    h = x * 2
    h.retain_grad()
    h.register_hook(print)
    out = h.sum()
    out.register_hook(print)
    g = graph(out, {"h": h})
    assert [node.hooks for node in g.nodes] == [
        ("tensor hook print",),
        ("tensor hook print", "retain_grad"),
        ("tensor hook print", "post_accumulate_grad hook print"),
    ]
    assert "neither leaves nor in names=, cannot be listed" in g.notes[-1]
    # Without its name h cannot be known.
    assert graph(out).nodes[1].hooks == ()
    assert "1 MulBackward0  h (2,)  tensor hook print  retain_grad" in repr(g)


def test_a_leaf_is_one_node():
    x = torch.ones(2, 3, requires_grad=True)
    g = graph(x, {"x": x})
    assert [(node.name, node.label, node.leaf, node.shapes) for node in g.nodes] == [
        ("AccumulateGrad", "x", True, ((2, 3),))
    ]
    assert g.edges == ()
    (note,) = g.notes
    assert note.startswith("The tensor is a leaf")
    assert repr(g).splitlines()[-1] == "0 AccumulateGrad  x (2, 3)"
    assert g.picture().png


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((torch.ones(2),), ValueError, r"shape \(2,\) does not require grad.*no_grad.*detach.*requires_grad_\(\)"),
        (((torch.ones(2),),), TypeError, "got a tuple. Pass one of its tensors"),
        ((None,), TypeError, r"got a NoneType\. Pass"),
        ((nn.Linear(2, 2),), TypeError, "got a Linear. Pass its output, and the module as model=$"),
        ((torch.ones(2, requires_grad=True), [1]), TypeError, r"names is of type list\. Pass a dict of tensors"),
        ((torch.ones(2, requires_grad=True), {"x": 1}), TypeError, r"names\['x'\] is of type int"),
        ((torch.ones(2, requires_grad=True), None, 3), TypeError, r"model is of type int\. Pass a torch\.nn\.Module"),
    ],
)
def test_bad_input(args, error, message):
    with pytest.raises(error, match=message):
        graph(*args)


def test_the_graph_is_not_kept_and_nothing_is_added():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.ones(1, 2, requires_grad=True)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    h = Double.apply(model(x))
    node = weakref.ref(h.grad_fn)
    value = weakref.ref(h)
    g = graph(h.sum(), {"x": x, "h": h}, model)
    g.picture()
    assert len(census(model, x, h)) == 0
    assert "DoubleBackward" in names(g)
    del h
    gc.collect()
    assert node() is None
    assert value() is None
    assert "DoubleBackward" in repr(g)


def test_same_graph_same_everything():
    def run():
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block())
        return graph(model(torch.ones(1, 2, 4, 4)).sum(), model=model)

    one, other = run(), run()
    assert one.nodes == other.nodes
    assert one.edges == other.edges
    assert repr(one) == repr(other)
    assert one._repr_mimebundle_() == other._repr_mimebundle_()
    assert "0x" not in repr(one)


def test_a_function_may_keep_something_as_variable():
    """The node of a custom Function is its ctx, with whatever attributes forward sets."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.variable = 3
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    g = graph(Double.apply(x), {"x": x})
    assert [(node.name, node.label, node.leaf) for node in g.nodes] == [
        ("DoubleBackward", "", False),
        ("AccumulateGrad", "x", True),
    ]


def test_nodes_that_hide_their_shapes_have_none():
    class Shy:
        @property
        def _input_metadata(self):
            raise RuntimeError

    from hookscope.graphs.graph import _shapes

    assert _shapes(Shy()) == ()
    assert _shapes(object()) == ()
