"""The tree from a symptom to its cure: what you see, what to ask, with which tool, and what it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["PLACES", "SYMPTOMS", "Ask", "Cure", "paths"]


@dataclass(frozen=True)
class Cure:
    """The end of a path.

    Attributes:
        cause: what it was.
        cure: what to do, in words.
        code: what to write.

    """

    cause: str
    cure: str
    code: str


@dataclass(frozen=True)
class Ask:
    """A question on the way.

    Attributes:
        question: what to ask.
        tool: the line that answers it.
        answers: where each answer leads.

    """

    question: str
    tool: str
    answers: tuple[tuple[str, Ask | Cure], ...]


_NOT_CALLED = Ask(
    "How does forward use the layer?",
    "inspect.getsource(model.forward)",
    (
        (
            "layer.forward(x)",
            Cure("Your code calls layer.forward, which does not run the hooks.", "Call the layer.", "x = layer(x)"),
        ),
        (
            "F.linear(x, layer.weight)",
            Cure(
                "A function uses the weight, but nothing calls the layer.",
                "Call the layer, or register the hook on its parent module.",
                "x = layer(x)",
            ),
        ),
        (
            "for step in model.steps",
            Cure(
                "The hook is on a ModuleList. The list is never called; only the layers in it are called.",
                "Register the hook on each layer in the list.",
                "for step in steps:\n    step.register_forward_hook(hook)",
            ),
        ),
        (
            "not in this pass",
            Cure(
                "forward did not call the layer in this pass.",
                "Run a pass that uses the layer, or register the hook on a different layer.",
                "handle = other_layer.register_forward_hook(hook)",
            ),
        ),
    ),
)

_CALLED = Ask(
    "Which kind of hook is it?",
    "hookscope.census(model)",
    (
        (
            "a forward hook",
            Cure(
                "You registered the hook after the pass.",
                "Register the hook first. Then run the model.",
                "layer.register_forward_hook(hook)\nmodel(x)",
            ),
        ),
        (
            "a backward hook, and backward() did not run",
            Cure(
                "Nothing computed a gradient, for example because the pass ran under no_grad().",
                "Call backward() on a result that requires grad.",
                "model(x).sum().backward()",
            ),
        ),
        (
            "a backward hook, and backward() ran",
            Cure(
                "The output is a tensor in a dict, or in a tuple in a tuple. torch does not search there.",
                "In a forward hook, register a tensor hook on the tensor.",
                "def watch(module, args, output):\n    output[1][0].register_hook(hook)",
            ),
        ),
    ),
)

_NAMES = Ask(
    "Which names are in the dict?",
    "print(kept.keys())",
    (
        (
            "only the last one",
            Cure(
                "The hook looks up name when it is called. By then, the loop is over.",
                "Store the name in the hook.",
                "layer.register_forward_hook(functools.partial(keep, name))",
            ),
        ),
        (
            "all of them",
            Cure(
                "The layer is called several times, but the hook keeps only the last call.",
                "Keep a list of all calls.",
                "kept.setdefault(name, []).append(output.detach().clone())",
            ),
        ),
    ),
)

SYMPTOMS: dict[str, Ask] = {
    "My hook is not called": Ask(
        "Is the hook registered?",
        "hookscope.census(model)",
        (
            (
                "no",
                Cure(
                    "The hook was removed, or you registered it on a different layer or model.",
                    "Register the hook on the model that you run.",
                    "handle = model.layer.register_forward_hook(hook)",
                ),
            ),
            (
                "yes",
                Ask(
                    "Was its layer called?",
                    "with hookscope.capture(model, '*') as seen:\n    model(x)\nprint(seen.uncalled)",
                    (("no", _NOT_CALLED), ("yes", _CALLED)),
                ),
            ),
            (
                "the model is compiled",
                Cure(
                    "You registered the hook after the compiled model had already run.",
                    "Run this call without the compiler.",
                    'with torch.compiler.set_stance("force_eager"):\n    compiled(x)',
                ),
            ),
        ),
    ),
    "My hook is called too often": Ask(
        "How many hooks are on the layer?",
        "hookscope.census(model)",
        (
            (
                "more than one",
                Cure(
                    "You ran the cell again, or forward registers the hook.",
                    "Remove the hook at the end of a with block.",
                    "with layer.register_forward_hook(hook):\n    model(x)",
                ),
            ),
            (
                "one",
                Ask(
                    "How often is the layer called?",
                    "with hookscope.capture(model) as seen:\n    model(x)\nprint(seen.order)",
                    (
                        (
                            "several times",
                            Cure(
                                "The model calls this layer several times in one pass.",
                                "Keep a list of all calls.",
                                "kept.append(output.detach().clone())",
                            ),
                        ),
                        (
                            "once",
                            Cure(
                                "A deep copy of the model has the same hook, or a checkpoint runs the layer again in "
                                "the backward pass.",
                                "Make the copy before you register the hook. With a checkpoint, remove the hook before "
                                "the backward pass.",
                                "average = copy.deepcopy(net)\nhandle = net.register_forward_hook(hook)",
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    "My hook changes the result": Ask(
        "What is different after your hook has run?",
        "with hookscope.record(model, values=True) as log:\n    model(x)\nprint(log)",
        (
            (
                "the output or the input",
                Ask(
                    "Does the hook return a value?",
                    "inspect.getsource(hook)",
                    (
                        (
                            "yes, or it is a lambda",
                            Cure(
                                "The return value of a hook replaces the output. A lambda always returns a value.",
                                "Write a hook that only watches as a def without a return.",
                                "def look(module, args, output):\n    seen.append(output.detach().clone())",
                            ),
                        ),
                        (
                            "no",
                            Cure(
                                "The hook writes into the output, which is the input of the next layer.",
                                "Work on a copy.",
                                "def look(module, args, output):\n    copy = output.detach().clone()",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "the gradient",
                Cure(
                    "The hook writes into the gradient, but other tensors can share its memory.",
                    "Write into a clone and return it.",
                    "def stop(grad):\n    grad = grad.clone()\n    grad[0] = 0\n    return grad",
                ),
            ),
        ),
    ),
    "What I kept is wrong": Ask(
        "Was it overwritten later?",
        "with hookscope.capture(model) as seen:\n    model(x)\nprint(seen.overwritten)",
        (
            (
                "yes",
                Cure(
                    "A later step writes in place, and detach() does not copy the memory.",
                    "Keep a clone.",
                    "kept[name] = output.detach().clone()",
                ),
            ),
            (
                "no",
                Ask(
                    "Which kind of hook kept it?",
                    "hookscope.census(model)",
                    (
                        (
                            "a pre-hook",
                            Cure(
                                "A pre-hook is called with the input, so it kept the input.",
                                "Use a forward hook.",
                                "layer.register_forward_hook(keep)",
                            ),
                        ),
                        ("a forward hook", _NAMES),
                    ),
                ),
            ),
        ),
    ),
    "Memory grows": Ask(
        "Do the kept tensors have a graph?",
        "kept[0].grad_fn",
        (
            (
                "yes",
                Cure(
                    "Each tensor keeps its whole graph alive.",
                    "Detach the tensors before you keep them.",
                    "kept.append(output.detach().clone())",
                ),
            ),
            (
                "no, it is None",
                Cure(
                    "The list itself grows with every call.",
                    "Keep a number instead of a tensor, or remove the hook.",
                    "kept.append(output.mean().item())",
                ),
            ),
        ),
    ),
    "torch raises an error": Ask(
        "What does the error say?",
        "print(error)",
        (
            (
                "hooks should return None",
                Cure(
                    "A post-accumulate hook returns a value.",
                    "Write the hook as a def without a return.",
                    "def clip(weight):\n    weight.grad.clamp_(-1, 1)",
                ),
            ),
            (
                "is a view and is being modified inplace",
                Cure(
                    "A full backward hook turns the output into a view, but the next step writes into it.",
                    "Use a tensor hook, or do not write in place.",
                    "output.register_hook(hook)  # in a forward hook",
                ),
            ),
            (
                "Cannot use both regular backward hooks",
                Cure(
                    "A legacy hook was once registered on this module, and torch still blocks full hooks on it.",
                    "Create the module again, and use only full hooks.",
                    "layer.register_full_backward_hook(hook)",
                ),
            ),
        ),
    ),
}

_UNCALLED = ("My hook is not called", "yes", "no")
_CALLED_ONCE = ("My hook is not called", "yes", "yes")
_NOT_IN_PASS = (*_UNCALLED, "not in this pass")
_NO_GRADIENT = (*_CALLED_ONCE, "a backward hook, and backward() did not run")
PLACES: dict[str, tuple[str, ...]] = {
    "not_in_model": ("My hook is not called", "no"),
    "no_hook": ("My hook is not called", "no"),
    "compiled": ("My hook is not called", "the model is compiled"),
    "view_written": ("torch raises an error", "is a view and is being modified inplace"),
    "swallowed": _NOT_IN_PASS,
    "never_called": (*_UNCALLED, "for step in model.steps"),
    "children_called": (*_UNCALLED, "for step in model.steps"),
    "forward_called": (*_UNCALLED, "layer.forward(x)"),
    "weight_used": (*_UNCALLED, "F.linear(x, layer.weight)"),
    "other_mode": _NOT_IN_PASS,
    "copy_called": _NOT_IN_PASS,
    "not_reached": _NOT_IN_PASS,
    "no_grad": _NO_GRADIENT,
    "frozen": _NO_GRADIENT,
    "detached": _NO_GRADIENT,
    "nested_output": (*_CALLED_ONCE, "a backward hook, and backward() ran"),
    "replaced": ("My hook changes the result", "the output or the input", "yes, or it is a lambda"),
    "wrote": ("My hook changes the result", "the output or the input", "no"),
    "overwritten": ("What I kept is wrong", "yes"),
    "keeps_graph": ("Memory grows", "yes"),
    "late_name": ("What I kept is wrong", "no", "a forward hook", "only the last one"),
    "registered_again": ("My hook is called too often", "more than one"),
    "checkpoint": ("My hook is called too often", "one", "once"),
    "called_often": ("My hook is called too often", "one", "several times"),
    "pre_hook": ("What I kept is wrong", "no", "a pre-hook"),
    "fires": (*_CALLED_ONCE, "a forward hook"),
}
"""Cause in a diagnosis -> the path that ends in it. The tree has no path for the other causes."""


def paths() -> Iterator[tuple[str, tuple[tuple[Ask, str], ...], Cure]]:
    """Every way through the tree: the symptom, the questions with their answers, the cure."""

    def below(ask: Ask, way: tuple[tuple[Ask, str], ...]) -> Iterator[tuple[tuple[tuple[Ask, str], ...], Cure]]:
        for answer, then in ask.answers:
            if isinstance(then, Cure):
                yield (*way, (ask, answer)), then
            else:
                yield from below(then, (*way, (ask, answer)))

    for symptom, ask in SYMPTOMS.items():
        for way, cure in below(ask, ()):
            yield symptom, way, cure
