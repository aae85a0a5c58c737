"""Turn names, globs, types and predicates into the modules of a model that they mean."""

from hookscope.layers.find import LayerNotFoundError, Which, find_layers, layer_names, leaves, tree

__all__ = ["LayerNotFoundError", "Which", "find_layers", "layer_names", "leaves", "tree"]
