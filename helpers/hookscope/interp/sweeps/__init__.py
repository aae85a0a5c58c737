"""Try one change at every layer and position, one at a time, and show the effect of each on a number."""

from hookscope.interp.sweeps.cell import Cell
from hookscope.interp.sweeps.options import SweepOptions
from hookscope.interp.sweeps.result import Sweep
from hookscope.interp.sweeps.sweep import sweep

__all__ = ["Cell", "Sweep", "SweepOptions", "sweep"]
