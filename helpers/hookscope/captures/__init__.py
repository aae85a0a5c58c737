"""Keep what flowed through chosen layers, outputs, inputs and gradients, as it was at that moment."""

from hookscope.captures.capture import Call, Capture, Layer, NotCapturedError, Stats, capture
from hookscope.captures.flow import gradient_flow
from hookscope.captures.reuse import release_memory

__all__ = ["Call", "Capture", "Layer", "NotCapturedError", "Stats", "capture", "gradient_flow", "release_memory"]
