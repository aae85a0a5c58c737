"""Show one module's legacy and full backward hook side by side, and say why they see different gradients."""

from hookscope.comparisons.compare import BackwardComparison, HookView, compare_backward_hooks

__all__ = ["BackwardComparison", "HookView", "compare_backward_hooks"]
