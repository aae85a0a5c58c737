"""A graph with the parts of a gradient on its edges, and a hook that you put on one of its tensors or steps."""
