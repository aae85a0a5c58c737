"""A graph as picture, Mermaid text and table: names escaped, boxes apart, arrows down."""

import itertools
import sys
import unittest.mock
import warnings
from html.parser import HTMLParser

import torch
from torch import nn

from hookscope.graphs import drawing, graph
from tests.package.graphs.graph_helpers import Block, get_tree_text

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
    assert "\n" not in get_tree_text(g)[-1]
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
        "    linkStyle default stroke:#7a8694",
        '    caption["Autograd graph behind a tensor of shape (1, 1): 4 nodes, 3 edges, 2 leaves.'
        "<br/>These tensors are not in this graph: other.<br/>Hooks on nodes (grad_fn.register_hook), and on tensors "
        "that "
        'are neither leaves nor in names=, cannot be listed."] ~~~ n0',
        "    style caption fill:#ffffff,stroke:none,color:#1d2733",
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


def test_deep_trees_stay_narrow():
    y = torch.ones(1, requires_grad=True)
    for _ in range(150):
        y = y.exp()
    lines = get_tree_text(graph(y))
    assert lines[0] == "(↓ marks the only successor of the line above)"
    assert lines[1:4] == ["0 ExpBackward0  (1,)", "↓ 1 ExpBackward0  (1,)", "↓ 2 ExpBackward0  (1,)"]
    assert max(map(len, lines)) < 60


def test_a_very_deep_graph_needs_no_recursion():
    y = torch.ones(1, requires_grad=True)
    for _ in range(5000):
        y = y * 1.0
    g = graph(y)
    assert len(g.nodes) == 5001
    assert "chain of 4998 nodes" in repr(g)
