"""What is folded or cut in the drawing of a large graph is said, and no hook vanishes with it."""

import torch
from torch import nn

from hookscope.graphs import graph
from tests.package.graphs.graph_helpers import get_tree_text


def test_200_nodes_are_shown_one_by_one():
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(199):
        y = y + 1
    g = graph(y)
    assert len(g.nodes) == 200
    assert "More than" not in g.caption
    assert len(g._view()[0]) == 200
    assert graph(y + 1).caption.count("More than 200 nodes, so") == 1


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
    assert get_tree_text(g) == [
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
