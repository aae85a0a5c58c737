"""Read the autograd graph behind a tensor, and show it as text, Mermaid or an image.

The graph is read in the direction of the gradients: from `tensor.grad_fn` along `next_functions` to the
`AccumulateGrad` nodes of the leaves. Only names and shapes are stored, so torch can free the real graph.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hookscope.censuses.entry import list_hooks
from hookscope.graphs.drawing import Arrows, NodeBox, draw, fits_page, fold, make_box, mermaid_text, tree
from hookscope.graphs.node import Edge, Node, Shape
from hookscope.pictures.colors import INK, LINE, PAGE
from hookscope.pictures.picture import Picture, Table, from_figure

__all__ = ["Edge", "Graph", "Node", "graph"]

_WIDE_LABELS = '%%{init: {"flowchart": {"wrappingWidth": 320}}}%%'  # pixels; Mermaid's default of 200 breaks node names
_MODULE_HOOK = "BackwardHookFunctionBackward"
_UNSEEN = (
    "Hooks on nodes (grad_fn.register_hook), and on tensors that are neither leaves nor in names=, cannot be listed."
)


class Graph:
    """The autograd graph behind a tensor; made by `graph`.

    A notebook shows small graphs as a Mermaid diagram, and larger ones as an image with a table. A graph of more than
    200 nodes is folded, and the caption says how. `nodes` and `edges` always hold all.

    Attributes:
        nodes: all nodes, in the order of their IDs.
        edges: all edges, in the order of source and index.
        notes: remarks on this graph.

    """

    def __init__(
        self, nodes: Sequence[Node], edges: Sequence[Edge], shape: tuple[int, ...], notes: Sequence[str]
    ) -> None:
        self.nodes = tuple(nodes)
        self.edges = tuple(edges)
        self.notes = tuple(notes)
        self._shape = shape

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The `AccumulateGrad` nodes."""
        return tuple(node for node in self.nodes if node.leaf)

    @property
    def caption(self) -> str:
        """The shape of the tensor, the size of the graph, and a sentence on the folded nodes."""
        return self._caption(self._view()[2])

    def __repr__(self) -> str:
        boxes, arrows, folded = self._view()
        return "\n".join([self._caption(folded), *tree(boxes, arrows)])

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, for a README or a Markdown cell.

        Leaves have round ends, and folded nodes have double sides. If several arrows leave a node, each shows its
        index in `next_functions`. Mermaid refuses more than 500 arrows; use `picture` for such a graph.

        Example:
            >>> import torch
            >>> a = torch.ones(2, requires_grad=True)
            >>> print(graph(a * 3, names={"a": a}).to_mermaid())
            %%{init: {"flowchart": {"wrappingWidth": 320}}}%%
            flowchart TD
                accTitle: Autograd graph of 2 nodes, 1 edge, 1 leaf
                accDescr {
                Arrows go the way of the gradients.
                0 MulBackward0, (2,), next 1.
                1 AccumulateGrad, a (2,).
                }
                n0["0 MulBackward0<br/>(2,)"]
                n1(["1 AccumulateGrad<br/>a (2,)"])
                n0 --> n1
                linkStyle default stroke:#7a8694
                caption["Autograd graph behind a tensor of shape (2,): 2 nodes, 1 edge, 1 leaf.<br/>Hooks on nodes \
        (grad_fn.register_hook), and on tensors that are neither leaves nor in names=, cannot be listed."] ~~~ n0
                style caption fill:#ffffff,stroke:none,color:#1d2733

        """
        boxes, arrows, folded = self._view()
        lines = [f"accTitle: Autograd graph of {self._size()}", "accDescr {", "Arrows go the way of the gradients."]
        for row in self._rows(boxes, arrows):
            after = f"next {row['next']}" if row["next"] else ""
            words = filter(None, (f"{row['node']} {row['name']}", str(row["tensor"]), after))
            lines.append(f"{mermaid_text(', '.join(words))}.")
        lines.append("}")
        for box in boxes:
            start, end = ("([", "])") if box.leaf else ("[[", "]]") if box.count > 1 else ("[", "]")
            lines.append(f"n{box.id}{start}{_label([f'{box.id} {box.title}', *box.details])}{end}")
        several = Counter(source for source, _ in arrows)
        for (source, target), indices in arrows.items():
            text = f"|{', '.join(map(str, indices))}|" if indices and several[source] > 1 else ""
            lines.append(f"n{source} -->{text} n{target}")
        # Mermaid has no variables, and this gray is visible on a light and on a dark page.
        lines.append(f"linkStyle default stroke:{LINE}")
        lines.append(f"caption[{_label(self._caption(folded).splitlines())}] ~~~ n0")
        lines.append(f"style caption fill:{PAGE},stroke:none,color:{INK}")
        return "\n".join([_WIDE_LABELS, "flowchart TD", *(f"    {line}" for line in lines)])

    def picture(self) -> Picture:
        """Draw the graph in layers from top to bottom, with a table of its nodes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        boxes, arrows, folded = self._view()
        leaves = [box.labels[0] for box in boxes if box.leaf and box.labels]
        ends = (
            f" It ends at the leaves {', '.join(leaves[:8])}{' and others' if len(leaves) > 8 else ''}."
            if leaves
            else ""
        )
        alt = f"Autograd graph of {self._size()}, drawn from {boxes[0].title} at the top downwards.{ends}"
        with warnings.catch_warnings():
            # The font lacks a character of a name; the table shows it.
            warnings.filterwarnings("ignore", "Glyph ", UserWarning)
            return from_figure(draw(boxes, arrows), alt, self._caption(folded), self._rows(boxes, arrows))

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        boxes, arrows, folded = self._view()
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/vnd.mermaid": self.to_mermaid()}
        try:
            picture = self.picture()
        except ImportError:  # no matplotlib
            html = Table(self._rows(boxes, arrows), self._caption(folded)).to_html()
            metadata = {}
        else:
            html = picture.to_html()
            bundle["image/png"] = picture.png
            metadata = {"image/png": {"alt": picture.alt}}
        # JupyterLab prefers HTML to Mermaid, and shrinks a wide Mermaid diagram until it is illegible.
        if not fits_page(boxes, arrows):
            bundle["text/html"] = html
        return bundle, metadata

    def _size(self) -> str:
        return f"{_number(self.nodes, 'node')}, {_number(self.edges, 'edge')}, {_number(self.leaves, 'leaf', 'leaves')}"

    def _caption(self, folded: str) -> str:
        return "\n".join(
            [f"Autograd graph behind a tensor of shape {self._shape}: {self._size()}.{folded}", *self.notes]
        )

    def _rows(self, boxes: Sequence[NodeBox], arrows: Arrows) -> list[dict[str, object]]:
        after: dict[int, list[str]] = {}
        for source, target in arrows:
            after.setdefault(source, []).append(str(target))
        return [
            {
                "node": box.id,
                "name": box.title,
                "tensor": "; ".join(box.details),
                "next": ", ".join(after.get(box.id, [])),
            }
            for box in boxes
        ]

    def _view(self) -> tuple[list[NodeBox], Arrows, str]:
        """Return the boxes, the arrows, and a sentence on the folded nodes."""
        boxes = {node.id: make_box(node) for node in self.nodes}
        arrows: Arrows = {}
        for edge in self.edges:
            arrows[edge.source, edge.target] = (*arrows.get((edge.source, edge.target), ()), edge.index)
        return fold(boxes, arrows, {node.id: node.inputs for node in self.nodes})


def graph(tensor: Tensor, names: Mapping[str, Tensor] | None = None, model: nn.Module | None = None) -> Graph:
    """Read the autograd graph behind a tensor, without adding hooks or keeping it alive.

    Args:
        tensor: a tensor that requires grad.
        names: a dict from names to tensors. The graph shows these names.
        model: a model. The graph shows the names of its parameters.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the tensor does not require grad, so it has no graph.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> graph(model(torch.ones(4, 2)).sum(), model=model)
        Autograd graph behind a tensor of shape (): 6 nodes, 5 edges, 2 leaves.
        Hooks on nodes (grad_fn.register_hook), and on tensors that are neither leaves nor in names=, cannot be listed.
        0 SumBackward0  ()
          1 ReluBackward0  (4, 3)
            2 AddmmBackward0  (4, 3)
              3 AccumulateGrad  0.bias (3,)
              4 TBackward0  (2, 3)
                5 AccumulateGrad  0.weight (3, 2)

    """
    _check(tensor, names, model)
    # A tensor gets its first name, and names= comes before the model.
    named = [(name, value, True) for name, value in (names or {}).items()]
    if model is not None:
        named += [(name, value, False) for name, value in model.named_parameters()]
        named += [(name, value, False) for name, value in model.named_buffers() if value.requires_grad]
    known: dict[int, str] = {}
    for name, value, _ in named:
        known.setdefault(id(value), name)
    if tensor.grad_fn is None:
        label = known.get(id(tensor), "")
        only = Node(0, "AccumulateGrad", label, (tuple(tensor.shape),), _hooks([tensor]), True, 0)
        text = "The tensor is a leaf, so no operation is behind it. Its gradient is added to its .grad."
        return Graph([only], [], tuple(tensor.shape), [text])

    found, edges = _walk(tensor.grad_fn)
    number = {id(node): index for index, node in enumerate(found)}
    # The named tensors of each node. A leaf belongs to the node that accumulates its gradient.
    at: dict[int, list[tuple[str, Tensor]]] = {}
    variables = {id(_variable(node)): index for index, node in enumerate(found) if _variable(node) is not None}
    missing = []
    seen: set[int] = set()
    for name, value in [*((name, value) for name, value, _ in named), ("", tensor)]:
        place = variables.get(id(value)) if value.grad_fn is None else number.get(id(value.grad_fn))
        if place is None:
            missing.append(name)
        elif id(value) not in seen:
            at.setdefault(place, []).append((name, value))
        seen.add(id(value))
    nodes = []
    for index, node in enumerate(found):
        here = at.get(index, [])
        variable = _variable(node)
        values = [value for _, value in here] or ([variable] if variable is not None else [])
        label = ", ".join(name for name, _ in here if name)
        shapes = (tuple(variable.shape),) if variable is not None else _shapes(node)
        name = str(node.name()).removeprefix("torch::autograd::")
        nodes.append(Node(index, name, label, shapes, _hooks(values), variable is not None, len(node.next_functions)))
    return Graph(nodes, edges, tuple(tensor.shape), _notes(nodes, missing))


def _check(tensor: object, names: object, model: object) -> None:
    if not isinstance(tensor, Tensor):
        hint = (
            ". Pass one of its tensors"
            if isinstance(tensor, (tuple, list, Mapping))
            else ". Pass a loss or an output of the model"
        )
        hint = ". Pass its output, and the module as model=" if isinstance(tensor, nn.Module) else hint
        raise TypeError(f"graph needs a tensor, but got a {type(tensor).__name__}{hint}")
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(f"names is of type {type(names).__name__}. Pass a dict of tensors, such as names={{'x': x}}")
    for name, value in (names or {}).items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise TypeError(f"names must map strings to tensors, but names[{name!r}] is of type {type(value).__name__}")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}. Pass a torch.nn.Module")
    if not tensor.requires_grad:
        raise ValueError(
            f"the tensor of shape {tuple(tensor.shape)} does not require grad, so it has no autograd graph. Perhaps "
            "it was computed under torch.no_grad() or detached, or no input of the computation requires grad. Call "
            "requires_grad_() on an input, and compute it without torch.no_grad()"
        )


def _walk(start: Any) -> tuple[list[Any], list[Edge]]:
    """Number the nodes depth first. The list keeps them alive, so that torch returns the same objects again."""
    found: list[Any] = []
    number: dict[int, int] = {}
    stack = [start]
    while stack:
        node = stack.pop()
        if id(node) in number:
            continue
        number[id(node)] = len(found)
        found.append(node)
        stack.extend(after for after, _ in reversed(node.next_functions) if after is not None)
    edges = [
        Edge(source, index, number[id(after)], input_nr)
        for source, node in enumerate(found)
        for index, (after, input_nr) in enumerate(node.next_functions)
        if after is not None
    ]
    return found, edges


def _variable(node: Any) -> Tensor | None:
    """Return the leaf of an `AccumulateGrad`. A custom Function can set this attribute too, so check the name."""
    return node.variable if node.name() == "torch::autograd::AccumulateGrad" else None


def _shapes(node: Any) -> tuple[Shape, ...]:
    """Read the shapes against which autograd checks the gradients. They are in a private attribute."""
    shapes: list[Shape] = []
    try:
        for metadata in node._input_metadata:
            try:
                shapes.append(tuple(int(size) for size in metadata.shape))
            except (AttributeError, RuntimeError, TypeError):  # a nested tensor, or an unused output
                shapes.append(None)
    except (AttributeError, RuntimeError):
        return ()
    return tuple(shapes)


def _hooks(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    hooks: list[str] = []
    for tensor in tensors:
        hooks += [f"{entry.kind} hook {entry.callable}" for entry in list_hooks(tensor)]
        hooks += ["retain_grad"] if tensor.retains_grad else []
    return tuple(hooks)


def _notes(nodes: Sequence[Node], missing: Sequence[str]) -> list[str]:
    notes = []
    if count := sum(node.name == _MODULE_HOOK for node in nodes):
        were = "node was" if count == 1 else "nodes were"
        notes.append(f"{count} {_MODULE_HOOK} {were} added by full backward hooks or pre-hooks of modules.")
    if missing := list(filter(None, missing)):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        notes.append(f"These tensors are not in this graph: {', '.join(missing[:5])}{more}.")
    return [*notes, _UNSEEN]


def _number(things: Sequence[object], one: str, many: str = "") -> str:
    return f"{len(things)} {one if len(things) == 1 else many or one + 's'}"


def _label(lines: Iterable[str]) -> str:
    return f'"{"<br/>".join(map(mermaid_text, lines))}"'
