"""Scale one channel of a layer with a forward hook, and see what the network reads."""
