"""Follow the stream of a sequence model from block to block, and read it as words by the model's own norm and head."""

from hookscope.interp.lenses.blocks import NoBlocksError
from hookscope.interp.lenses.reading import Reading
from hookscope.interp.lenses.streams import Streams

__all__ = ["NoBlocksError", "Reading", "Streams"]
