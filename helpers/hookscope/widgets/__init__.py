"""What a learner plays with in a notebook: pick a layer, step through hooks, edit an input, follow a gradient."""

from __future__ import annotations

from hookscope.widgets.picker import LayerPicker

__all__ = ["LayerPicker"]
