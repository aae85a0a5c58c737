"""Show the autograd nodes behind a tensor: which there are, what feeds what, and where hooks are."""

from hookscope.graphs.graph import Edge, Graph, Node, graph

__all__ = ["Edge", "Graph", "Node", "graph"]
