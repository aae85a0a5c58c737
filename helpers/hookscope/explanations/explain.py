"""Find who writes the lines for an object, and show them as code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope.captures.result import Capture
from hookscope.censuses.census import Census
from hookscope.comparisons.compare import BackwardComparison
from hookscope.edits.edit import Edit
from hookscope.explanations.capture import of_capture, of_flow
from hookscope.explanations.cell import of_cell
from hookscope.explanations.edit import of_edit
from hookscope.explanations.hooks import of_census, of_comparison, of_graph, of_recording
from hookscope.explanations.sweep import of_sweep
from hookscope.graphs.graph import Graph
from hookscope.pictures.grid import FeatureGrid
from hookscope.pictures.picture import Picture
from hookscope.pictures.words import html_of, visible
from hookscope.recordings.record import Recording
from hookscope.sweeps.cell import Cell
from hookscope.sweeps.result import Sweep

__all__ = ["Explanation", "explain"]


class Explanation:
    """Python source that does with plain torch what an object of this package does; made by `explain`.

    `print` it, paste it, change it.

    Attributes:
        code: the source. It takes `model` and `inputs`, what it is called with, and runs one pass.
        title: what it does, in a few words.
        names: what else the source takes, by name: your tensors and functions, of edits.

    """

    def __init__(self, code: str, title: str, names: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.title = title
        self.names = dict(names or {})

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return visible(self.code.rstrip("\n"))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        html = (
            f"<figure>\n<figcaption>{html_of(self.title)}</figcaption>\n"
            f'<pre tabindex="0"><code>{html_of(self.code)}</code></pre>\n</figure>'
        )
        return {"text/plain": repr(self), "text/html": html}


def explain(
    obj: Capture | Edit | Recording | Sweep | Cell | Census | BackwardComparison | Graph | Picture,
) -> Explanation:
    """Write the plain torch lines that an object stands for, to be read, pasted and run.

    The lines need `model` and `inputs`, and nothing of this package. `inputs` is a tuple of positional arguments;
    for a capture or an edit of a model that takes several, it may be a dict of keyword arguments. They register the
    hooks, run one pass, take the hooks off whatever happens, and leave what they found in variables. They fit what
    has been seen: of a layer that returned one tensor they keep one tensor, and of a `Capture` that has not run
    they are ready for tuples, lists and dicts.

    What they do not do is the rest: torch copies at once here, where `capture` copies only what is overwritten, and
    nothing tells you which output that was. Under `torch.func`, as with vmap, they keep torch's wrappers, which are of
    no use once the transform is over; a capture keeps what is inside. For edits of heads and edges they switch torch's
    fused paths off in the whole model, where `edit` does so in the layers that it edits: the others may be rounded
    differently. They run one pass, with the sum of what the model returns as the loss; of a sweep as many as it has
    cells.

    Args:
        obj: one of

            - a `Capture`, before or after its pass: variables `outputs` (or `stats`), `grads` (or `grad_stats`),
              `received` and `order`. Where outputs hold several tensors, `grads` has a list for each call, with the
              gradient, or None, of each tensor;
            - an `Edit`: `result`. Tensors and functions that you gave it are in `Explanation.names`;
            - a `Sweep`: `values` and `baseline`, by the plain loop, one pass for each cell; `inputs` is what the sweep
              was given, a dict of keyword arguments, too. Metric and source are in `Explanation.names`;
            - a `Cell` of a sweep (`hookscope.sweeps.Cell`): `before`, `after`, `baseline` and `value`, by one hook;
            - what `gradient_flow` returns: `flow`;
            - a `Recording`: `events`;
            - a `Census`: `hooks`;
            - what `compare_backward_hooks` returns: `grads`;
            - a `Graph`: `nodes` and `edges`.

    Returns:
        An `Explanation`; a notebook shows its code.

    Raises:
        TypeError: there is nothing to explain about `obj`; names what can be explained.
        ValueError: the sweep was pickled, and its metric is gone.

    Example:
        >>> from torch import nn
        >>> from hookscope.captures.capture import capture
        >>> net = nn.Sequential(nn.Linear(2, 1), nn.ReLU(inplace=True))
        >>> explain(capture(net, "0"))
        layers = {model.get_submodule(name): name for name in ['0']}
        outputs = {}  # layer name -> what it returned, one entry per call
        order = []  # the layer names, in the order of the calls
        handles = []
        <BLANKLINE>
        <BLANKLINE>
        def keep_output(module, args, output):
            name = layers[module]
            order.append(name)
            # Detached, it keeps no graph alive; copied, nothing in place can overwrite it.
            outputs.setdefault(name, []).append(output.detach().clone())
        <BLANKLINE>
        <BLANKLINE>
        try:
            for layer in layers:
                handles.append(layer.register_forward_hook(keep_output))
            result = model(*inputs)
        finally:
            for handle in handles:
                handle.remove()  # otherwise your hooks fire in every later pass

    """
    if isinstance(obj, Capture):
        return Explanation(of_capture(obj), f"{obj.title}: what flowed through its layers, with plain torch")
    if isinstance(obj, Edit):
        code, names = of_edit(obj)
        return Explanation(code, f"{obj.title}: edited, with plain torch", names)
    if isinstance(obj, Sweep):
        code, names = of_sweep(obj)
        return Explanation(code, f"{obj.title}: the sweep as a plain loop", names)
    if isinstance(obj, Cell):
        code, names = of_cell(obj)
        return Explanation(code, f"{obj.sweep.title}: {obj.name}, with plain torch", names)
    if isinstance(obj, Recording):
        return Explanation(of_recording(obj), f"{obj._title}: in which order its hooks fire, with plain torch")
    if isinstance(obj, Census):
        return Explanation(of_census(obj), "Which hooks are on a model, with plain torch")
    if isinstance(obj, BackwardComparison):
        return Explanation(of_comparison(obj), f"{obj._name}: what its backward hooks see, with plain torch")
    if isinstance(obj, Graph):
        return Explanation(of_graph(obj), "The autograd graph behind a tensor, with plain torch")
    if isinstance(obj, Picture) and obj.rows and {"call", "type", "mean |x|"} <= set(obj.rows[0]):
        return Explanation(of_flow(obj.rows), f"{obj.caption}, with plain torch")
    if isinstance(obj, FeatureGrid):
        raise TypeError("a feature grid holds no hook: explain the capture that its activation came from")
    raise TypeError(
        f"there is nothing to explain about {type(obj).__name__}: give what capture, edit, sweep, record, "
        "census, compare_backward_hooks, graph or gradient_flow returned"
    )
