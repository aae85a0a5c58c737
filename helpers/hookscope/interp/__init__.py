"""Interpret a model: edits, sweeps, attention, lenses, data sets of activations, profiles."""
