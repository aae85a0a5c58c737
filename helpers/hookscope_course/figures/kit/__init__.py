"""What figures share: the palette, the sheet and the scene, boxes and arrows, playback, keyboard, images of digits.

`scene.js` and `scene.css` are for figures that draw hooks and values as SVG, `digits.js` and `digits.css` for figures
of scans, `finder` for lists with a filter.
"""

from pathlib import Path

__all__ = ["KIT"]

KIT = Path(__file__).parent
"""The folder of the shared scripts and styles."""
