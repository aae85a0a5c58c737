"""Compare a legacy and a full backward hook on a module, and explain why they get different gradients."""

from hookscope.comparisons.compare import BackwardComparison, HookView, compare_backward_hooks

__all__ = ["BackwardComparison", "HookView", "compare_backward_hooks"]
