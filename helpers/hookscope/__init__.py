"""See, learn and debug PyTorch hooks: which ones fired, in which order, and with which values.

    import hookscope

    with hookscope.capture(model) as seen:        # the output of every layer, safe from in-place operations
        model(x)
    hookscope.census(model)                       # the hooks that are on a model right now
    hookscope.diagnose(model, "conv1", x)         # why a hook prints nothing, and the line that fixes it
    with hookscope.edit(model) as e:              # change values; an edit that did not happen raises an error
        e.set("conv1", 0, hookscope.at[:, 3])
        model(x)
    hookscope.attention(model, x)                 # the attention weights of every head, each call checked
    hookscope.sweep(model, x, layers="h.*", source=clean, metric=score, positions=range(9))  # one change at a time
    hookscope.profile(model, x)                   # time, FLOPs and memory of each layer, forward and backward
    with hookscope.record(model) as recording:    # every hook point, in the order it fires
        model(x).sum().backward()
    hookscope.collect(model, loader, to="folder") # the outputs of layers for a whole data set, on disk
    hookscope.feature_grid(activation)            # feature maps in one image, with their numbers
    hookscope.image_grid(photo, over=maps)        # images in gray or color, and maps on top of them
    hookscope.explain(seen)                       # plain torch code that does the same
    hookscope.widgets.LayerPicker(model, x)       # pick a layer and see its feature maps

Importing this package imports torch and nothing heavier; matplotlib, torchvision and ipywidgets are
imported by the functions that need them.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.captures import NotCapturedError, OverwrittenError, capture, gradient_flow
from hookscope.censuses import census
from hookscope.layers import LayerNotFoundError, find_layers, leaves, tree
from hookscope.pictures import Picture, Table, feature_grid, image_grid
from hookscope.recordings import FullBackwardHookError, record

if TYPE_CHECKING:
    from hookscope import samples, widgets
    from hookscope.comparisons import compare_backward_hooks
    from hookscope.diagnoses import diagnose
    from hookscope.explanations import explain
    from hookscope.graphs import graph
    from hookscope.interp.activations import Activations, collect
    from hookscope.interp.attentions import attention
    from hookscope.interp.edits import NotEditedError, at, edit
    from hookscope.interp.profiles import profile
    from hookscope.interp.sweeps import SweepOptions, sweep

__version__ = "0.2.0rc1"

__all__ = [
    "Activations",
    "FullBackwardHookError",
    "LayerNotFoundError",
    "NotCapturedError",
    "NotEditedError",
    "OverwrittenError",
    "Picture",
    "SweepOptions",
    "Table",
    "at",
    "attention",
    "capture",
    "census",
    "collect",
    "compare_backward_hooks",
    "diagnose",
    "edit",
    "explain",
    "feature_grid",
    "find_layers",
    "gradient_flow",
    "graph",
    "image_grid",
    "leaves",
    "profile",
    "record",
    "samples",
    "sweep",
    "tree",
    "widgets",
]


_LATER = {
    "compare_backward_hooks": "comparisons", "diagnose": "diagnoses",
    "explain": "explanations", "graph": "graphs",
    "Activations": "interp.activations", "collect": "interp.activations", "attention": "interp.attentions",
    "NotEditedError": "interp.edits", "at": "interp.edits", "edit": "interp.edits", "profile": "interp.profiles",
    "SweepOptions": "interp.sweeps", "sweep": "interp.sweeps",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name that not everybody needs when it is first used."""
    if name in ("samples", "widgets"):
        return import_module(f"hookscope.{name}")
    if name in _LATER:
        value = globals()[name] = getattr(import_module(f"hookscope.{_LATER[name]}"), name)
        return value
    near = get_close_matches(name, __all__, n=1, cutoff=0.7)
    raise AttributeError(f"hookscope has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def __dir__() -> list[str]:
    """List the public names, including those that are imported later."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
