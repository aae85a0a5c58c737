"""Write the plain torch lines that an object of this package stands for."""

from hookscope.explanations.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
