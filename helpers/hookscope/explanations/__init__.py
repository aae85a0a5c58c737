"""Write the plain torch lines that do what a capture or an edit does."""

from hookscope.explanations.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
