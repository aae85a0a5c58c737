"""Show the autograd graph of a tensor: its nodes, their edges and their hooks."""

from hookscope.graphs.graph import Edge, Graph, Node, graph

__all__ = ["Edge", "Graph", "Node", "graph"]
