"""A second small language model, for the capstone of chapter 16: it tells who goes where."""

from hookscope_course.errands.model import ERRAND_WEIGHTS, errand_lm, errands

__all__ = ["ERRAND_WEIGHTS", "errand_lm", "errands"]
