"""Write plain torch code that does the same as a capture or an edit."""

from hookscope.explanations.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
