"""Follow the stream of a sequence model from block to block, and read it as words by the model's own norm and head."""

from hookscope.lenses.blocks import NoBlocksError
from hookscope.lenses.reading import Reading
from hookscope.lenses.streams import Streams

__all__ = ["NoBlocksError", "Reading", "Streams"]
