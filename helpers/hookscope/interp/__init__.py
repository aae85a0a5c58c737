"""Look into a model by changing it: edits, sweeps, attention, lenses, data sets of activations, profiles."""
