"""The causes that `diagnose` can find: for each a sentence, and the line to type."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CAUSES", "Finding", "as_code"]

# The first one that holds is what to mend first. In the lines, {layer} is the layer, and the evidence gives {other}.
_TABLE: dict[str, tuple[str, str]] = {
    # no hook can fire
    "not_in_model": ("This layer is not in the model that you run.", "handle = {other}.register_forward_hook(hook)"),
    "compiled": (
        "The model is compiled. torch can ignore a hook that you registered after its first pass.",
        'with torch.compiler.set_stance("force_eager"):\n    model(x)',
    ),
    # the pass ends early
    "view_written": (
        "A full backward hook turns the output into a view, but the next step writes into it.",
        "def hook(module, args, output):\n    output.register_hook(backward_hook)\n"
        "handle = {other}.register_forward_hook(hook)",
    ),
    "keyword_inputs": (
        "The layer gets its inputs by keyword, so args is ().",
        "handle = {layer}.{other}(hook, with_kwargs=True)",
    ),
    "hook_raised": ("Your hook raises an exception.", "{other}"),
    "replaced": (
        "Your hook returns a value, which replaces the one of the model.",
        "def hook({other}):\n    kept.append({value}.detach().clone())",
    ),
    "wrote": ("Your hook writes into a tensor of the model.", "copy = {other}.detach().clone()"),
    "swallowed": ("A layer raises an exception, and the model catches it.", "{other}(x)  # outside the try block"),
    "raised": ("The pass ends with an exception.", 'with hookscope.capture(model, "*") as seen:\n    model(x)'),
    # the layer is not called
    "never_called": ("torch never calls this module.", "{other}"),
    "forward_called": ("Your code calls forward(), which skips the hooks.", "x = {other}(x)"),
    "children_called": (
        "The model calls the modules inside this one, but not the module itself.",
        "for step in {layer}.children():\n    step.register_forward_hook(hook)",
    ),
    "weight_used": ("A function uses the weight, but nothing calls the layer.", "x = {other}(x)"),
    "other_mode": ("The model calls this layer only in its other mode.", "model.{other}()"),
    "copy_called": ("The model calls a copy of this layer.", "handle = {other}.register_forward_hook(hook)"),
    "not_reached": ("This pass does not reach the layer.", "handle = {other}.register_forward_hook(hook)"),
    "no_hook": ("This layer has no hook.", "handle = {layer}.register_forward_hook(hook)"),
    # no gradient arrives
    "no_grad": ("Gradients are switched off, so no backward hook fires.", "{other}"),
    "frozen": ("Nothing requires grad up to this layer, so no backward hook fires.", "{other}.requires_grad_()"),
    "detached": (
        "The result does not depend on the output of the layer, or is detached from it, so no backward hook fires.",
        "x = {layer}(x)  # use x in the loss, without detach(), no_grad() or argmax() behind it",
    ),
    "nested_output": (
        "The output is not a tensor or a tuple of tensors, so a full backward hook misses gradients.",
        "def hook(module, args, output):\n    output{other}.register_hook(backward_hook)",
    ),
    # the values are not what you expect
    "legacy": (
        "A legacy backward hook gets the gradients of the last operation only.",
        "handle = {layer}.register_full_backward_hook(hook)",
    ),
    "overwritten": (
        "A later step overwrites the output after your hook has seen it.",
        "kept.append(output.detach().clone())",
    ),
    "keeps_graph": (
        "The output of the layer and its graph are still in memory after the pass.",
        "kept.append(output.detach().clone())",
    ),
    "late_name": (
        "Your hook reads a variable that now has the name of a different layer.",
        "handle = {layer}.register_forward_hook(functools.partial(hook, {name!r}))",
    ),
    "copied": (
        "A deep copy of the model has copied your hook, with the object that the hook writes into.",
        "handle = {layer}.register_forward_hook(hook)  # after the copy",
    ),
    "registered_again": (
        "The same hook is registered several times.",
        "with {layer}.register_forward_hook(hook):\n    model(x)",
    ),
    "checkpoint": (
        "A checkpoint runs the layer again in the backward pass.",
        "with {layer}.register_forward_hook(hook):\n    loss = model(x).sum()\nloss.backward()",
    ),
    "called_often": ("The model calls the layer several times.", "kept.append(output.detach().clone())"),
    "no_grad_input": ("grad_input is None, because no input of the layer requires grad.", "{other}"),
    # nothing is wrong
    "fires": ("Your hook runs in this pass.", "{other}"),
    "pre_hook": ("A pre-hook gets the input, not the output.", "handle = {layer}.register_forward_hook(hook)"),
    "silent": ("No reason was found.", 'hookscope.record(model, "{name}")'),
}
CAUSES = {cause: sentence for cause, (sentence, _) in _TABLE.items()}
"""Name -> sentence, in the order in which the rows of a diagnosis are sorted."""


@dataclass(frozen=True)
class Finding:
    """One thing that `diagnose` has found.

    Attributes:
        cause: one of `CAUSES`.
        evidence: the names and numbers that show it.
        write: what to type; `""` if this depends on the code of your hook.

    """

    cause: str
    evidence: str
    write: str

    @classmethod
    def of(cls, cause: str, evidence: str, layer: str, **words: str) -> Finding:
        """Fill the line of a cause with the names of the layer and of others."""
        return cls(cause, evidence, _TABLE[cause][1].format(layer=as_code(layer), name=layer, **words))

    @property
    def sentence(self) -> str:
        """What was found."""
        return CAUSES[self.cause]


def as_code(name: str, root: str = "model") -> str:
    """Write the name of a layer as an expression.

    Example:
        >>> as_code("layer1.0.bn1"), as_code("")
        ('model.layer1[0].bn1', 'model')

    """
    return re.sub(r"\.(\d+)", r"[\1]", f"{root}.{name}" if name else root)
