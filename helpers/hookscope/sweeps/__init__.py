"""Try one change at every layer and position, one at a time, and show what each does to a number."""

from hookscope.sweeps.cell import Cell
from hookscope.sweeps.result import Sweep
from hookscope.sweeps.sweep import sweep

__all__ = ["Cell", "Sweep", "sweep"]
