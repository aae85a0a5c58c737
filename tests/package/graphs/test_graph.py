"""The graph behind a tensor: every node and edge as torch has them, names that can be trusted, nothing kept alive."""

import gc
import itertools
import sys
import unittest.mock
import warnings
import weakref
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

from hookscope.censuses.census import census
from hookscope.graphs import Edge, drawing, graph


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.bn = nn.BatchNorm2d(2)

    def forward(self, x):
        return self.bn(self.conv(x)).relu() + x


def names(g):
    return [node.name for node in g.nodes]


def text(g):
    """The tree without caption and notes."""
    return repr(g).splitlines()[1 + len(g.notes) :]


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
    assert text(g) == [
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
    assert g.notes[0] == ("Not in this graph: elsewhere, unused.weight, unused.bias, frozen.weight, frozen.bias.")
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
    assert "neither leaves nor named cannot be seen" in g.notes[-1]
    # Without its name h cannot be known.
    assert graph(out).nodes[1].hooks == ()
    assert "1 MulBackward0  h (2,)  tensor hook print  retain_grad" in repr(g)


def test_module_hooks_are_said():
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda *a: None)
    g = graph(model(torch.ones(1, 2, requires_grad=True)))
    assert names(g).count("BackwardHookFunctionBackward") == 2
    assert g.notes[0].startswith("2 BackwardHookFunctionBackward nodes were put in by full backward hooks")


def test_a_leaf_is_one_node():
    x = torch.ones(2, 3, requires_grad=True)
    g = graph(x, {"x": x})
    assert [(node.name, node.label, node.leaf, node.shapes) for node in g.nodes] == [
        ("AccumulateGrad", "x", True, ((2, 3),)),
    ]
    assert g.edges == ()
    assert g.notes == (
        "The tensor is a leaf: nothing is behind it, and a gradient that reaches it is added to its .grad.",
    )
    assert repr(g).splitlines()[-1] == "0 AccumulateGrad  x (2, 3)"
    assert g.picture().png


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((torch.ones(2),), ValueError, r"requires no gradient.*no_grad.*detach"),
        (((torch.ones(2),),), TypeError, "takes a tensor, not tuple; pick one"),
        ((None,), TypeError, "takes a tensor, not NoneType$"),
        ((nn.Linear(2, 2),), TypeError, "takes a tensor, not Linear; pass what it returns, and the module as model=$"),
        ((torch.ones(2, requires_grad=True), [1]), TypeError, "names must map names to tensors, as in"),
        ((torch.ones(2, requires_grad=True), {"x": 1}), TypeError, r"names\['x'\] is of type int"),
        ((torch.ones(2, requires_grad=True), None, 3), TypeError, r"must be a torch\.nn\.Module, not int"),
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


def test_backward_changes_nothing_in_the_names():
    x = torch.ones(2, requires_grad=True)
    out = (x.exp() * 2).sum()
    before = repr(graph(out))
    out.backward()
    assert repr(graph(out)) == before


def test_a_graph_of_a_gradient():
    x = torch.ones(2, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g = graph(grad, {"x": x})
    assert [leaf.label for leaf in g.leaves] == ["x"]


HOSTILE = '<img src=x onerror=alert(1)>"]; click n0 call alert() %% $x_{1}$ `#quot;`\n end'


def test_names_are_escaped():
    x = torch.ones(2, requires_grad=True)
    g = graph(x * 2, {HOSTILE: x})
    chart = g.to_mermaid()
    line = next(line for line in chart.splitlines() if "n1([" in line)
    assert line.count('"') == 2
    first, *others = chart.splitlines()
    assert first == '%%{init: {"flowchart": {"wrappingWidth": 320}}}%%'
    assert [line for line in others if "{" in line or "}" in line] == ["    accDescr {", "    }"]
    for sign in ("<img", "$", "`", "%"):
        assert not any(sign in line for line in others)
    assert "#60;img src=x onerror=alert(1)#62;#34;]#59;" in line
    assert len(others) == 13, "a line break in a name makes no line"
    assert "\n" not in text(g)[-1]
    html = g.picture().to_html()

    class Tags(HTMLParser):
        images = 0

        def handle_starttag(self, tag, attrs):
            self.images += tag == "img"
            assert "onerror" not in dict(attrs)

    tags = Tags()
    tags.feed(html)
    assert tags.images == 1


def test_a_name_that_the_font_lacks_gives_no_warning():
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graph(x * 2, {"重み": x}).picture().png


def test_mermaid_text():
    model = nn.Linear(2, 1)
    assert graph(model(torch.ones(1, 2)), {"other": torch.ones(1)}, model).to_mermaid().splitlines() == [
        '%%{init: {"flowchart": {"wrappingWidth": 320}}}%%',
        "flowchart TD",
        "    accTitle: Autograd graph of 4 nodes, 3 edges, 2 leaves",
        "    accDescr {",
        "    Arrows go the way of the gradients.",
        "    0 AddmmBackward0, (1, 1), next 1, 2.",
        "    1 AccumulateGrad, bias (1,).",
        "    2 TBackward0, (2, 1), next 3.",
        "    3 AccumulateGrad, weight (1, 2).",
        "    }",
        '    n0["0 AddmmBackward0<br/>(1, 1)"]',
        '    n1(["1 AccumulateGrad<br/>bias (1,)"])',
        '    n2["2 TBackward0<br/>(2, 1)"]',
        '    n3(["3 AccumulateGrad<br/>weight (1, 2)"])',
        "    n0 -->|0| n1",
        "    n0 -->|2| n2",
        "    n2 --> n3",
        "    linkStyle default stroke:#777",
        '    caption["Autograd graph behind a tensor of shape (1, 1): 4 nodes, 3 edges, 2 leaves.'
        "<br/>Not in this graph: other.<br/>Hooks on nodes (grad_fn.register_hook) and on tensors that are neither "
        'leaves nor named cannot be seen."] ~~~ n0',
        "    style caption fill:#fff,stroke:none,color:#000",
    ]


def test_picture_says_what_it_shows():
    model = nn.Linear(2, 1)
    g = graph(model(torch.ones(1, 2)), model=model)
    picture = g.picture()
    assert picture.alt == (
        "Autograd graph of 4 nodes, 3 edges, 2 leaves, drawn from AddmmBackward0 at the top downwards. "
        "It ends at the leaves bias, weight."
    )
    assert picture.rows[0] == {"node": 0, "name": "AddmmBackward0", "tensor": "(1, 1)", "next": "1, 2"}
    assert picture.caption == g.caption


def perceptron(layers):
    """A graph of 3 nodes per layer and one more, never more than 3 side by side."""
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
    return graph(model(torch.ones(1, 2)).sum(), model=model)


def test_what_can_be_read_as_mermaid_shows_itself_so():
    """JupyterLab takes text/html before text/vnd.mermaid, and that before image/png."""
    g = perceptron(5)
    assert len(g.nodes) == 16
    bundle, metadata = g._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/vnd.mermaid", "image/png"}
    assert bundle["text/plain"] == repr(g)
    assert bundle["text/vnd.mermaid"] == g.to_mermaid()
    assert bundle["image/png"] == g.picture().png
    assert metadata == {"image/png": {"alt": g.picture().alt}}


def test_a_large_or_wide_graph_shows_itself_as_picture_and_table():
    xs = [torch.ones(1, requires_grad=True) for _ in range(5)]
    assert set(graph(torch.stack(xs[:4]))._repr_mimebundle_()[0]) == {"text/plain", "text/vnd.mermaid", "image/png"}
    for g in (perceptron(6), graph(torch.stack(xs))):
        bundle, _ = g._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/vnd.mermaid", "image/png", "text/html"}
        assert f'alt="Autograd graph of {len(g.nodes)} nodes' in bundle["text/html"]
        assert "<table>" in bundle["text/html"]


def test_without_matplotlib_text_and_diagram_are_left():
    g, large = perceptron(1), perceptron(6)
    with unittest.mock.patch.dict(sys.modules, {"matplotlib.figure": None}):
        bundle, metadata = g._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/vnd.mermaid"}
        assert bundle["text/plain"] == repr(g)
        assert metadata == {}
        bundle, _ = large._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/vnd.mermaid", "text/html"}
        assert "5.weight" in bundle["text/html"]
        with pytest.raises(ImportError, match=r"needs matplotlib: pip install matplotlib"):
            g.picture()


def test_boxes_do_not_overlap_and_arrows_go_down():
    model = nn.Sequential(Block(), Block())
    g = graph(model(torch.ones(1, 2, 4, 4, requires_grad=True)).sum(), model=model)
    boxes, arrows, _ = g._view()
    places, routes = drawing.place_boxes(boxes, arrows)
    taken = [*places.values(), *(stop for way in routes.values() for stop in way)]
    by_layer = {}
    for column, layer in taken:
        by_layer.setdefault(layer, []).append(column)
    for columns in by_layer.values():
        columns.sort()
        assert all(b - a > 0.999 for a, b in itertools.pairwise(columns))
    for source, target in arrows:
        assert places[source][1] < places[target][1]
        assert len(routes[source, target]) == places[target][1] - places[source][1] - 1


def test_200_nodes_are_shown_one_by_one():
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(199):
        y = y + 1
    g = graph(y)
    assert len(g.nodes) == 200
    assert "More than" not in g.caption
    assert len(g._view()[0]) == 200
    assert graph(y + 1).caption.count("More than 200, so") == 1


def test_a_long_chain_is_folded_and_said():
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(300):
        y = y + 1
    middle = y
    for _ in range(300):
        y = y + 1
    g = graph(y, {"x": x, "middle": middle})
    assert len(g.nodes) == 601
    assert "chains are folded into one" in g.caption
    assert "left out" not in g.caption
    assert text(g) == [
        "0 AddBackward0  (2,)",
        "  1 chain of 299 nodes  AddBackward0 to AddBackward0",
        "    300 AddBackward0  middle (2,)",
        "      301 chain of 298 nodes  AddBackward0 to AddBackward0",
        "        599 AddBackward0  (2,)  with x",
    ]
    assert 'n1[["1 chain of 299 nodes<br/>' in g.to_mermaid()


def test_leaves_are_folded_first_with_their_names():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(60)))
    g = graph(model(torch.ones(1, 2)), model=model)
    assert len(g.nodes) == 240
    assert "leaves are folded into the only node that uses them; .nodes" in g.caption
    boxes, arrows, _ = g._view()
    assert len(boxes) == 60
    assert len(arrows) == 59
    assert boxes[0].details == ("(1, 2)", "with 59.bias, 59.weight")
    assert sum(box.count for box in boxes) == 240
    assert "with 2 leaves" in repr(graph(model(torch.ones(1, 2))))


def test_a_chain_says_whose_parameters_it_has():
    model = nn.ModuleDict({"body": nn.Sequential(*(nn.Linear(2, 2) for _ in range(250)))})
    g = graph(model["body"](torch.ones(1, 2)).sum(), model=model)
    assert "with 498 leaves of body" in repr(g) or "with 500 leaves of body" in repr(g)


def test_a_shared_leaf_stays():
    layer = nn.Linear(2, 2)
    y = torch.ones(1, 2)
    for _ in range(100):
        y = layer(y)
    g = graph(y, model=layer)
    assert [box.labels for box in g._view()[0] if box.leaf] == [("bias",)] or "left out" in g.caption
    assert {leaf.label for leaf in g.leaves} == {"bias", "weight"}
    assert sum(box.count for box in g._view()[0]) == len(g.nodes)


def test_what_cannot_be_folded_is_cut_and_said():
    xs = [torch.ones(2, requires_grad=True) for _ in range(30)]
    ys = xs
    for _ in range(10):
        ys = [a * b for a, b in zip(ys, ys[1:] + ys[:1], strict=True)]
    g = graph(torch.stack(ys).sum())
    boxes, arrows, _ = g._view()
    assert len(boxes) == 201
    assert boxes[-1].title == f"{len(g.nodes) - 200} more nodes"
    assert f"{len(g.nodes) - 200} boxes far from the tensor are left out" in g.caption
    ids = {box.id for box in boxes}
    assert all(source in ids and target in ids for source, target in arrows)
    assert repr(g).splitlines()[-1].startswith("  ")
    assert g.picture().png


def test_a_hooked_node_never_vanishes_in_a_chain():
    x = torch.ones(2, requires_grad=True)
    y, kept = x, {}
    for index in range(400):
        y = y + 1
        if index == 200:
            y.retain_grad()
            kept["here"] = y
    assert "here (2,)  retain_grad" in repr(graph(y, kept))


def test_a_hooked_reshape_never_vanishes_with_its_leaf():
    layers = [nn.Linear(2, 2, bias=False) for _ in range(80)]
    turned = [layer.weight.t() for layer in layers]
    turned[7].register_hook(print)
    layers[9].weight.register_hook(abs)
    y = torch.ones(1, 2)
    for matrix in turned:
        y = y @ matrix
    g = graph(y, {"turned": turned[7]}, nn.ModuleList(layers))
    boxes = g._view()[0]
    assert len(boxes) == 83, "78 leaves with their reshapes are folded into what uses them"
    assert [box.details for box in boxes if box.leaf] == [("9.weight (2, 2)", "tensor hook abs")]
    (box,) = [box for box in boxes if "tensor hook print" in box.details]
    assert (box.title, box.details) == ("TBackward0", ("turned (2, 2)", "tensor hook print", "with 7.weight"))
    for shown in (repr(g), g.to_mermaid(), repr(g.picture())):
        assert "tensor hook print" in shown


def test_hooks_far_away_are_counted():
    xs = [torch.ones(2, requires_grad=True) for _ in range(250)]
    xs[-1].register_hook(print)
    both = torch.stack(xs).sum() + torch.stack(xs).sum()
    assert graph(both)._view()[0][-1].details == ("not shown", "1 of them with a name or a hook")
    xs[-1]._backward_hooks.clear()
    assert graph(both)._view()[0][-1].details == ("not shown",)


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


def test_deep_trees_stay_narrow():
    y = torch.ones(1, requires_grad=True)
    for _ in range(150):
        y = y.exp()
    lines = text(graph(y))
    assert lines[0] == "(↓ marks what alone follows the line above)"
    assert lines[1:4] == ["0 ExpBackward0  (1,)", "↓ 1 ExpBackward0  (1,)", "↓ 2 ExpBackward0  (1,)"]
    assert max(map(len, lines)) < 60


def test_a_very_deep_graph_needs_no_recursion():
    y = torch.ones(1, requires_grad=True)
    for _ in range(5000):
        y = y * 1.0
    g = graph(y)
    assert len(g.nodes) == 5001
    assert "chain of 4998 nodes" in repr(g)


def test_nodes_that_hide_their_shapes_have_none():
    class Shy:
        @property
        def _input_metadata(self):
            raise RuntimeError

    from hookscope.graphs.graph import _shapes

    assert _shapes(Shy()) == ()
    assert _shapes(object()) == ()
