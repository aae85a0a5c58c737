"""Follow the residual stream of a sequence model, and read it as words with the logit lens."""

from hookscope.interp.lenses.blocks import NoBlocksError
from hookscope.interp.lenses.reading import Reading
from hookscope.interp.lenses.streams import Streams

__all__ = ["NoBlocksError", "Reading", "Streams"]
