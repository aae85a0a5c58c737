"""Write the plain torch lines that a recording, a census, a comparison and an autograd graph stand for."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from hookscope.censuses.entry import ON_ALL, ON_MODULE, ON_TENSOR
from hookscope.explanations.code import REMOVE, WIDTH, is_tensor_shape, layers_line, literal, run, script, tensors_in

if TYPE_CHECKING:
    from hookscope.censuses.census import Census
    from hookscope.comparisons.compare import BackwardComparison
    from hookscope.graphs.graph import Graph
    from hookscope.recordings.record import Recording

_PARAMETER_KINDS = {"tensor": "register_hook", "post_accumulate_grad": "register_post_accumulate_grad_hook"}

_NOTE = """\
def note(kind, name):
    def hook(*given):  # each kind of hook is given something else
        events.append((kind, name))
        # The hook returns None, so it changes nothing.

    return hook"""


def of_recording(recording: Recording) -> str:
    """Write what a recording does, for one pass and the hooks of its own."""
    names, kinds, events = list(recording._names), recording._kinds, recording.events
    own = [event for event in events if not event.hook]
    modules = recording._to_start[0][0] if recording._to_start else None
    parameters = "post_accumulate_grad" in kinds or any(event.type == "Parameter" for event in own)
    on_layers = [kind for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward") if kind in kinds]
    on_parameters = [kind for kind in _PARAMETER_KINDS if kind in kinds] if parameters else []
    wanted = any("backward" in kind for kind in on_layers) or bool(on_parameters)
    backward = wanted and (not events or any(event.phase == "backward" for event in events))
    results = [event.shapes for event in own if event.kind == "forward" and event.name == ""]
    plain = bool(results) and all(is_tensor_shape(shapes) for shapes in results)

    others = dict.fromkeys(
        f"your hook {e.hook}" if e.hook else f"{e.kind} {e.name}"
        for e in events
        if e.hook or not (e.kind in on_layers or (e.kind in on_parameters and e.type == "Parameter"))
    )
    said = _comment(f"Recorded too, and not in these lines: {', '.join(others)}.") if others else ""
    lines = ["try:"]
    if on_parameters:
        whole = "" in names
        lines += [] if whole else ["    parameters = {}", "    for layer, prefix in layers.items():"]
        if whole:
            lines += ["    parameters = {p: name for name, p in model.named_parameters()}"]
        else:
            lines += [
                "        for name, parameter in layer.named_parameters(prefix=prefix):",
                "            parameters.setdefault(parameter, name)  # once, even if two layers share it",
            ]
        lines += ["    for parameter, name in parameters.items():", "        if parameter.requires_grad:"]
        for kind in on_parameters:
            lines += [f'            hook = note("{kind}", name)']
            lines += [f"            handles.append(parameter.{_PARAMETER_KINDS[kind]}(hook))"]
    if on_layers:
        lines += ["    for layer, name in layers.items():"]
    for kind in on_layers:
        hook = f'layer.register_{kind}_hook(note("{kind}", name))'
        short = len(hook) <= WIDTH - 24
        lines += (
            [f"        handles.append({hook})"]
            if short
            else [f"        handles.append(\n            {hook}\n        )"]
        )
    lines += [run(plain, backward), REMOVE]
    start = [said] if said else []
    if wanted and events and not backward:
        start += ["# No backward pass ran in your recording, so none runs here."]
    start += [layers_line(names, modules), "events = []  # (kind, name), in the order in which the hooks fired"]
    start += ["handles = []"]
    return script("\n".join(start), tensors_in(False) if backward and not plain else "", _NOTE, "\n".join(lines))


def _comment(text: str) -> str:
    return fill(text, 86, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


_SHORT = """\
def name_of(hook):
    return getattr(hook, "__qualname__", f"{type(hook).__qualname__}()")"""


def of_census(found: Census) -> str:
    """Write how to read the dicts that torch keeps hooks in, those dicts where the census found some."""
    kinds = {entry.kind.replace("backward (legacy)", "full_backward") for entry in found}
    legacy = any("legacy" in entry.kind for entry in found)
    always = list(ON_MODULE)[:4]
    on_module = {a: kind for a, kind in ON_MODULE.items() if kind in kinds or a in always}
    on_tensor = {a: kind for a, kind in ON_TENSOR.items() if kind in kinds}
    on_all = {a: kind for a, kind in ON_ALL.items() if kind in kinds and "optimizer" not in kind}
    others = dict.fromkeys(
        f"{entry.kind} on {entry.where}"
        for entry in found
        if entry.layer is None and not entry.kind.startswith("global ")
    )
    others |= dict.fromkeys(entry.kind for entry in found if entry.kind.startswith("global optimizer"))
    said = [_comment(f"Found too, and not on the model: {', '.join(others)}.")] if others else []
    start = [
        *said,
        "# layer.register_forward_hook(f) puts f into a dict of the layer and returns a",
        "# handle; handle.remove() takes it out again. So the dicts tell you what is on.",
        _dict("dicts", {kind: a for a, kind in on_module.items()}),
    ]
    start += [_dict("of_tensors", {kind: a for a, kind in on_tensor.items()})] if on_tensor else []
    start += ["hooks = []  # (kind, layer name, hook)"]
    loop = [
        "for name, module in model.named_modules():",
        "    for kind, attribute in dicts.items():",
        "        for hook in getattr(module, attribute).values():",
    ]
    if legacy:
        loop += [
            '            old = kind == "full_backward" and module._is_full_backward_hook is False',
            '            shown = "backward (legacy)" if old else kind',
        ]
    loop += [f"            hooks.append(({'shown' if legacy else 'kind'}, name, name_of(hook)))"]
    if on_tensor:
        loop += [
            "    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]",
            "    for tensor in tensors:",
            "        for kind, attribute in of_tensors.items():",
            "            for hook in (getattr(tensor, attribute) or {}).values():",
            "                hooks.append((kind, name, name_of(hook)))",
        ]
    for attribute, kind in on_all.items():
        loop += [
            "# Global hooks are on every module there is.",
            f"for hook in torch.nn.modules.module.{attribute}.values():",
            f'    hooks.append(("{_kind_of_global(found, kind)}", None, name_of(hook)))',
        ]
    return script("\n".join(start), _SHORT, "\n".join(loop))


def _kind_of_global(found: Census, kind: str) -> str:
    old = "global backward (legacy)"
    return old if kind == "global full_backward" and any(entry.kind == old for entry in found) else kind


def _dict(name: str, items: dict[str, str]) -> str:
    return "\n".join([f"{name} = {{", *(f'    "{key}": "{value}",' for key, value in items.items()), "}"])


def of_comparison(both: BackwardComparison) -> str:
    """Write how to put the two kinds of backward hook on a module, one after the other."""
    plain = "the node of the output" in both.explanation
    lines = [
        "for kind in registers:",
        "    # A module may have one kind only. torch remembers which, even after remove().",
        "    model._is_full_backward_hook = None",
        "    handle = registers[kind](keep(kind))",
        "    try:",
        *(f"    {line}" for line in run(plain, True).replace("the hooks come", "the hook comes").splitlines()),
        "    finally:",
        "        handle.remove()",
    ]
    copied = [
        "def copied(gradients):  # torch goes on to use them, some become a .grad that grows",
        "    return tuple(None if grad is None else grad.detach().clone() for grad in gradients)",
    ]
    keep = [
        "def keep(kind):",
        "    def hook(module, grad_input, grad_output):",
        "        # The hook returns None: anything else would replace grad_input.",
        "        if kind not in grads:  # in case it fires several times",
        "            grads[kind] = copied(grad_input), copied(grad_output)",
        "",
        "    return hook",
    ]
    start = [
        "# The legacy kind sees the node that made the output, the full kind the arguments.",
        "registers = {",
        '    "legacy": model.register_backward_hook,',
        '    "full": model.register_full_backward_hook,',
        "}",
        "grads = {}  # kind -> (grad_input, grad_output)",
    ]
    return script("\n".join(start), "" if plain else tensors_in(False), *map("\n".join, (copied, keep, lines)))


def of_graph(graph: Graph) -> str:
    """Write how to walk from a tensor to the nodes behind it."""
    first = graph.nodes[0]
    if len(graph.nodes) == 1 and first.leaf:
        where = f"model.get_parameter({literal(first.label)})" if first.label else "inputs[0]"
        return script(
            "# A leaf: your own tensor, which no operation has made.\n"
            f"tensor = {where}\n"
            "assert tensor.grad_fn is None  # so there is no node to walk from\n"
            "# This node adds what arrives to tensor.grad.\n"
            "node = torch.autograd.graph.get_gradient_edge(tensor).node\n"
            "nodes, edges = [node], []\n"
            "print(node.name())"
        )
    last = {"SumBackward0": ".sum()", "MeanBackward0": ".mean()"}.get(first.name, "") if graph._shape == () else ""
    return script(
        f"tensor = model(*inputs){last}  # or the tensor whose graph you want to see\n"
        "names = {parameter: name for name, parameter in model.named_parameters()}\n"
        "nodes, waiting = [], [tensor.grad_fn]  # grad_fn is the node that made the tensor\n"
        "while waiting:\n"
        "    node = waiting.pop()\n"
        "    if node is None or node in nodes:  # None: that input needs no gradient\n"
        "        continue\n"
        "    nodes.append(node)\n"
        "    # Backwards, as gradients flow; reversed, since pop takes the last one first.\n"
        "    waiting.extend(behind for behind, _ in reversed(node.next_functions))\n"
        "edges = [\n"
        "    (nodes.index(node), nodes.index(behind))\n"
        "    for node in nodes\n"
        "    for behind, _ in node.next_functions\n"
        "    if behind is not None\n"
        "]\n"
        "for number, node in enumerate(nodes):\n"
        "    # Only a leaf's node has a variable: the tensor whose .grad it fills.\n"
        '    leaf = names.get(getattr(node, "variable", None), "")\n'
        "    print(number, node.name(), leaf)"
    )
