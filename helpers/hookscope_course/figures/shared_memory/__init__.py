"""One memory behind several names: in-place steps change the outputs that a hook keeps, and `clone()` prevents it."""
