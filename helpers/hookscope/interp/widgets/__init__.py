"""Widgets for sequence models and sweeps; `hookscope.widgets` has them by name."""
