"""Widgets for sequence models and sweeps. Import them from `hookscope.widgets`."""
