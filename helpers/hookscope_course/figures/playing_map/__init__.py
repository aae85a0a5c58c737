"""The map that plays: one call of a layer and the way back, with hooks that can be moved."""
