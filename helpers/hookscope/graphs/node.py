"""What an autograd graph is made of: a node with its names and shapes, and the way of one gradient to the next."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Edge", "Node", "Shape"]

Shape = tuple[int, ...] | None


@dataclass(frozen=True)
class Node:
    """One autograd node.

    Attributes:
        id: its number: 0 is the tensor's own node, the others follow depth first, in the order of `next_functions`.
        name: what torch calls it, "AddmmBackward0" say.
        label: the name of the tensor that this node made or, for a leaf, writes `.grad` of; "" if not known.
        shapes: the shapes of what the forward operation returned, so also of this node's `grad_output`; None for one
            that is not known, `()` in brackets for a scalar. Empty where torch does not say.
        hooks: the hooks that are seen on these tensors, "retain_grad" among them.
        leaf: whether it is an `AccumulateGrad`, the end of the graph at a leaf.
        inputs: the number of entries in `next_functions`; those without an edge need no gradient.

    """

    id: int
    name: str
    label: str
    shapes: tuple[Shape, ...]
    hooks: tuple[str, ...]
    leaf: bool
    inputs: int


@dataclass(frozen=True, order=True)
class Edge:
    """The way of one gradient from a node to the next.

    Attributes:
        source: id of the node that computes the gradient.
        index: which entry of `source`'s `next_functions`, and so of its `grad_input`.
        target: id of the node that gets it.
        input_nr: which entry of `target`'s `grad_output` it adds to.

    """

    source: int
    index: int
    target: int
    input_nr: int
