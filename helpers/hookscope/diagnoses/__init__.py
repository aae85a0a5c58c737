"""Find out why a hook on a layer prints nothing, or prints the wrong values."""

from hookscope.diagnoses.causes import CAUSES, Finding
from hookscope.diagnoses.diagnose import Diagnosis, diagnose

__all__ = ["CAUSES", "Diagnosis", "Finding", "diagnose"]
