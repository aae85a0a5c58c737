"""Keep outputs, inputs and gradients of chosen layers, as they were when the layer ran."""

from hookscope.captures.call import Call, NotCapturedError, OverwrittenError
from hookscope.captures.capture import capture
from hookscope.captures.gradient_flow import gradient_flow
from hookscope.captures.layer import Layer
from hookscope.captures.result import Capture
from hookscope.captures.stats import Stats

__all__ = [
    "Call",
    "Capture",
    "Layer",
    "NotCapturedError",
    "OverwrittenError",
    "Stats",
    "capture",
    "gradient_flow",
]
