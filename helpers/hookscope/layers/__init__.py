"""Say which modules a model has and what they are called, and pick some by name, glob, type or predicate."""

from hookscope.layers.arrivals import Arrivals
from hookscope.layers.find import Which, find_layers, layer_names, leaves, pick
from hookscope.layers.fused import FusedLayer, attention_would_be_fused, fused_around
from hookscope.layers.hookable import (
    is_write_to_hooked,
    refuse_compiled,
    refuse_unhookable,
)
from hookscope.layers.modules import Modules
from hookscope.layers.outline import tree
from hookscope.layers.running import call_of
from hookscope.layers.suggestions import LayerNotFoundError

__all__ = [
    "Arrivals",
    "FusedLayer",
    "LayerNotFoundError",
    "Modules",
    "Which",
    "attention_would_be_fused",
    "call_of",
    "find_layers",
    "fused_around",
    "is_write_to_hooked",
    "layer_names",
    "leaves",
    "pick",
    "refuse_compiled",
    "refuse_unhookable",
    "tree",
]
