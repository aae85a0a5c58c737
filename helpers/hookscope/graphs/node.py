"""The nodes and edges of an autograd graph."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Edge", "Node", "Shape"]

Shape = tuple[int, ...] | None


@dataclass(frozen=True)
class Node:
    """One autograd node.

    Attributes:
        id: number of the node. 0 is the node of the tensor; the others follow depth first.
        name: the name in torch, such as `"AddmmBackward0"`.
        label: name of the tensor that this node made, or of the leaf whose `.grad` it writes; `""` if it is not known.
        shapes: shapes of the outputs of the forward operation, so also of `grad_output`. None for an unknown one, empty
            if torch does not store them.
        hooks: the hooks on these tensors, including `"retain_grad"`.
        leaf: whether it is an `AccumulateGrad` node.
        inputs: length of `next_functions`. Entries without an edge require no gradient.

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
    """The path of one gradient from a node to the next.

    Attributes:
        source: ID of the node that computes the gradient.
        index: its index in `next_functions` and `grad_input` of the source.
        target: ID of the node that gets the gradient.
        input_nr: its index in `grad_output` of the target.

    """

    source: int
    index: int
    target: int
    input_nr: int
