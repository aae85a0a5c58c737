"""Save chosen outputs of a whole data set to disk, and read each of them as one tensor."""

from hookscope.interp.activations.collect import collect
from hookscope.interp.activations.dataset import Activations, Column, DamagedError

__all__ = ["Activations", "Column", "DamagedError", "collect"]
