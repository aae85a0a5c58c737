"""The tree from a symptom to its cure: what you see, what to ask, with which tool, and what it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["SYMPTOMS", "Ask", "Cure", "paths"]


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
            Cure("You called .forward, which goes around the hooks.", "Call the layer.", "x = layer(x)"),
        ),
        (
            "F.linear(x, layer.weight)",
            Cure(
                "A function took the weight. The layer itself was not called.",
                "Call the layer, or put the hook on the module around it.",
                "x = layer(x)",
            ),
        ),
        (
            "for step in model.steps",
            Cure(
                "The hook is on a ModuleList, which is never called. Its layers are.",
                "Put the hook on the layers in it.",
                "for step in steps:\n    step.register_forward_hook(hook)",
            ),
        ),
        (
            "not in this pass",
            Cure(
                "forward did not reach the layer.",
                "Run a pass that uses the layer, or hook another one.",
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
                "Register it first, and run the model then.",
                "layer.register_forward_hook(hook)\nmodel(x)",
            ),
        ),
        (
            "a backward hook, and backward() did not run",
            Cure(
                "Nothing asked for a gradient, for example under no_grad().",
                "Call backward() on a result that requires grad.",
                "model(x).sum().backward()",
            ),
        ),
        (
            "a backward hook, and backward() ran",
            Cure(
                "The module returned its tensor in a dict, or in a tuple in a tuple. torch does not look there.",
                "In a forward hook, put a tensor hook on the tensor.",
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
                "The hook looks up name when it is called, and the loop is over by then.",
                "Store the name with the hook.",
                "layer.register_forward_hook(functools.partial(keep, name))",
            ),
        ),
        (
            "all of them",
            Cure(
                "The layer is called again, and the hook keeps the last call only.",
                "Keep a list.",
                "kept.setdefault(name, []).append(output.detach().clone())",
            ),
        ),
    ),
)

SYMPTOMS: dict[str, Ask] = {
    "My hook is not called": Ask(
        "Is the hook there?",
        "hookscope.census(model)",
        (
            (
                "no",
                Cure(
                    "It was removed, or it was registered on another layer or model.",
                    "Register it on the model that you run.",
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
                    "The model was compiled and run before you registered the hook.",
                    "Run that call as Python.",
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
                    "The cell was run again, or forward itself registers the hook.",
                    "Take the hook off where you register it.",
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
                                "The model calls this layer several times in a pass.",
                                "Count the calls in the hook, and keep a list.",
                                "kept.append(output.detach().clone())",
                            ),
                        ),
                        (
                            "once",
                            Cure(
                                "A deep copy of the model has the same hook, or a checkpoint runs the layer again in "
                                "the backward pass.",
                                "Copy first, and register then. With a checkpoint, look at the forward pass only.",
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
                "another output or input",
                Ask(
                    "Does the hook return something?",
                    "inspect.getsource(hook)",
                    (
                        (
                            "yes, or it is a lambda",
                            Cure(
                                "What a hook returns becomes the output. A lambda returns its value.",
                                "A hook that looks needs def, and no return.",
                                "def look(module, args, output):\n    seen.append(output.detach().clone())",
                            ),
                        ),
                        (
                            "no",
                            Cure(
                                "The hook writes into the tensor that the next layer gets.",
                                "Work on a copy.",
                                "def look(module, args, output):\n    copy = output.detach().clone()",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "another gradient",
                Cure(
                    "The hook writes into the gradient, and other tensors may share its memory.",
                    "Write into a clone, and return it.",
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
                    "A later step writes in place, and detach() shares the memory.",
                    "Keep a copy.",
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
                                "A pre-hook is given the input, so it kept the input.",
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
        "Does what you kept have a graph?",
        "kept[0].grad_fn",
        (
            (
                "yes",
                Cure(
                    "Each tensor keeps the graph that it was computed in.",
                    "Detach what you keep.",
                    "kept.append(output.detach().clone())",
                ),
            ),
            (
                "no, it is None",
                Cure(
                    "The list itself grows with every call.",
                    "Keep a number, or take the hook off.",
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
                    "A post-accumulate hook returns something.",
                    "Write it with def, and no return.",
                    "def clip(weight):\n    weight.grad.clamp_(-1, 1)",
                ),
            ),
            (
                "is a view and is being modified inplace",
                Cure(
                    "A full backward hook makes the output a view, and the next step writes into it.",
                    "Use a tensor hook, or take the in-place step out.",
                    "output.register_hook(hook)  # in a forward hook",
                ),
            ),
            (
                "Cannot use both regular backward hooks",
                Cure(
                    "A legacy hook was on this module once, and left its mark.",
                    "Make the module anew, and use full hooks only.",
                    "layer.register_full_backward_hook(hook)",
                ),
            ),
        ),
    ),
}


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
