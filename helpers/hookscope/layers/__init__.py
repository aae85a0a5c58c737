"""List the modules of a model with their names, and pick some by name, glob, type or predicate."""

from hookscope.layers.find import Which, find_layers, layer_names, leaves, pick
from hookscope.layers.fused import FusedLayer, attention_would_be_fused, find_fused
from hookscope.layers.hookable import (
    is_write_to_hooked,
    refuse_compiled,
    refuse_unhookable,
)
from hookscope.layers.late_modules import LateModules
from hookscope.layers.module_map import ModuleMap
from hookscope.layers.module_tree import tree
from hookscope.layers.modules import Modules
from hookscope.layers.running_calls import call_id
from hookscope.layers.suggestions import LayerNotFoundError

__all__ = [
    "FusedLayer",
    "LateModules",
    "LayerNotFoundError",
    "ModuleMap",
    "Modules",
    "Which",
    "attention_would_be_fused",
    "call_id",
    "find_fused",
    "find_layers",
    "is_write_to_hooked",
    "layer_names",
    "leaves",
    "pick",
    "refuse_compiled",
    "refuse_unhookable",
    "tree",
]
