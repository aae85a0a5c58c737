"""Write the plain torch lines that a capture stands for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookscope.captures.call import Slot
from hookscope.captures.form import Form, Stats
from hookscope.explanations.code import (
    REMOVE,
    UNKNOWN,
    called,
    dtype_of,
    helper,
    layers_line,
    returns_tensor,
    run,
    script,
    structures,
    tensors_in,
)
from hookscope.layers.modules import Modules, children_of, within
from hookscope.structures import map_tensors

if TYPE_CHECKING:
    from hookscope.captures.result import Capture

_KEEP_GRAD = """\
def keep_grad(into, place):
    def hook(grad):
        into[place] = {kept}
        # The hook returns None: anything else would replace the gradient.

    return hook"""

_STATS = """\
def stats_of(tensor):
    values = tensor.detach().flatten().double()
    finite = values[values.isfinite()]
{guard}    return {{
        "shape": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "mean": finite.mean().item(),
        "std": finite.std(correction=0).item(),
        "mean_abs": finite.abs().mean().item(),
        "min": finite.min().item(),
        "max": finite.max().item(),
        "zeros": int((values == 0).sum()),
        "nan": int(values.isnan().sum()),
        "inf": int(values.isinf().sum()),
    }}"""

_GUARD = """\
    if not len(finite):  # nothing to take the mean of: NaN for all of it
        finite = values.new_tensor([float("nan")])
"""

_STOP = """\
class PassEnded(Exception):
    pass"""

_WAITING = "waiting = dict.fromkeys(layers.values(), {})  # calls that are still to come"

_STOP_HERE = [
    "    waiting[name] -= 1",
    "    if all(left <= 0 for left in waiting.values()):",
    "        raise PassEnded  # leaves the model; there is no result",
]

_STOPPED = ["except PassEnded:", "    pass  # all your layers have returned"]


@dataclass
class Pass:
    """What is to be written, and what is known of the pass that was seen.

    Attributes:
        names: the layers.
        modules: those of the model, to find a rule for the names by; None if they are not at hand.
        gradients: keep gradients too.
        inputs: keep args and kwargs too.
        form: how to keep a tensor; None for statistics.
        ran: whether a pass has been seen.
        out: structures of the outputs.
        into: structures of args and kwargs.
        kept: what was kept of each tensor, for what is true of all of them.
        scalars: whether a tensor without axes may come.
        nested: whether a layer may run inside another one's call.
        repeats: whether a layer may run inside its own call.
        raised: whether a call has ended by an exception.
        backward: whether to run backward.
        plain_result: whether the model returns one tensor.
        stop: after how many calls of each layer the pass ends; 0 for not at all.
        tail: lines for the end; they may use `tensors_in`.
        arrived: layers that came into the model while it was captured.

    """

    names: list[str]
    modules: Modules | None
    gradients: bool
    inputs: bool
    form: Form | None
    ran: bool = False
    out: set[str] = field(default_factory=lambda: set(UNKNOWN))
    into: set[str] = field(default_factory=lambda: set(UNKNOWN))
    kept: list[Any] = field(default_factory=list)
    scalars: bool = True
    nested: bool = False
    repeats: bool = False
    raised: bool = False
    backward: bool = False
    plain_result: bool = False
    stop: int = 0
    tail: str = ""
    arrived: tuple[str, ...] = ()


def of_capture(seen: Capture) -> str:
    """Write what a capture does."""
    if not hasattr(seen, "_model"):
        raise TypeError("this capture is a copy without its model; explain the capture that it was made from")
    wanted, layers, calls = seen._wanted, seen._layers, seen.calls
    form = wanted.form if isinstance(wanted.form, Form) else None
    about = Pass(list(layers.values()), seen.modules, wanted.gradients, wanted.inputs, form, ran=bool(calls))
    about.nested = not within(child for layer in layers for _, child in children_of(layer)).isdisjoint(layers)
    about.backward = wanted.gradients
    about.stop = wanted.stop
    about.arrived = tuple(dict.fromkeys(seen._hooks.arrived))
    plain: list[nn.Module] = []
    if calls:
        slots = [slot for call in calls for slot in call.slots()]
        given: list[Slot] = []
        if wanted.inputs:
            for call in calls:
                map_tensors(lambda slot: given.append(slot) or slot, call._args, Slot)  # type: ignore[func-returns-value]
        about.backward = wanted.gradients and any(slot.grads for slot in slots)
        about.kept = [slot.value for slot in (*slots, *given)]
        about.kept += [grad for slot in slots for grad in slot.grads] if form is None else []
        about.scalars = any(not slot.shape for slot in (*slots, *given))
        about.raised = any(not call._returned for call in calls)
        about.out = set().union(*(structures(call._output) for call in calls if call._returned))
        plain_inputs = all(not call._args[1] and all(isinstance(arg, Slot) for arg in call._args[0]) for call in calls)
        about.into = {"tensor"} if plain_inputs else set().union(*(structures(call._args) for call in calls))
        counts = Counter(call.layer for call in calls)
        several = [module for module, name in layers.items() if counts[name] > 1]
        about.repeats = any(not type(module).__module__.startswith("torch.nn.") for module in several)
        odd = {call.layer for call in calls if not call._returned or not isinstance(call._output, Slot)}
        plain = [module for module, name in layers.items() if counts[name] and name not in odd]
    elif all(map(returns_tensor, layers)):
        about.out = {"tensor"}
    about.plain_result = returns_tensor(seen.modules.model, plain)
    return write(about)


def write(about: Pass) -> str:
    """Write the script of one pass."""
    stats = about.form is None
    outputs, grads = ("stats", "grad_stats") if stats else ("outputs", "grads")
    plain_out, plain_in = about.out <= {"tensor"}, about.into == {"tensor"}
    keep, define = _keeping(about)
    followed = not (plain_out and (plain_in or not about.inputs))
    often = about.gradients or about.inputs
    if not define and (followed or len(keep) > 40 or (often and keep != "{}.detach().clone()")):
        keep, define = "kept({})", f"def kept(tensor):\n    return {keep.format('tensor')}"
        define = "\n".join([define.partition("\n")[0], *_why(about.form), define.partition("\n")[2]])
    function = keep.partition("(")[0]
    follow = (set() if plain_out else about.out) | (about.into if about.inputs and not plain_in else set())
    needs_list = (about.gradients and not plain_out) or (about.backward and not about.plain_result) or bool(about.tail)
    by_walk = "object" in follow  # which tensors_in finds no way into by itself
    if by_walk and about.backward and not about.plain_result:
        follow |= UNKNOWN

    whole = keep.format("output") if plain_out else f"map_tensors({function}, output)"
    body = ["    name = layers[module]"]
    in_order = about.inputs or about.nested or about.repeats or about.raised
    if about.repeats or about.raised:
        if about.raised:
            body += ["    while running[-1][0] != name:", "        running.pop()  # an exception has ended it"]
        body += ["    _, call = running.pop()"]
        stored = f"    {outputs}[name][call] = {whole}"
    else:
        body += [] if in_order else ["    order.append(name)"]
        stored = f"    {outputs}.setdefault(name, []).append({whole})"
    body += [*([] if define else _why(about.form)), stored]
    body += _grads_lines(about, grads, plain_out) if about.gradients else []
    body += _STOP_HERE if about.stop else []
    hook = "\n".join(["def keep_output(module, args, output):", *body])

    before = ""
    register = []
    if in_order:
        before = _before(about, keep, function, outputs, grads, plain_in)
        options = ", with_kwargs=True" if about.inputs else ""
        register += [f"        handles.append(layer.register_forward_pre_hook(before{options}))"]
    register += ["        handles.append(layer.register_forward_hook(keep_output))"]

    what = "statistics of what it returned" if stats else "what it returned"
    start = [layers_line(about.names, about.modules), f"{outputs} = {{}}  # layer name -> {what}, one entry per call"]
    if about.arrived:
        start[:0] = [f"# Came into the model while it ran, and has no hook here: {name}" for name in about.arrived]
    if about.gradients and not about.backward:
        start[:0] = ["# No gradient has reached your layers, so no backward pass runs here."]
    if about.gradients:
        start += [f"{grads} = {{}}  # the same for the gradient of each output"]
    if about.inputs:
        start += ["received = {}  # layer name -> (args, kwargs) of each call"]
    start += ["order = []  # the layer names, in the order of the calls"]
    if about.repeats or about.raised:
        start += ["running = []  # the calls that have not returned yet, the innermost last"]
    start += [_WAITING.format(about.stop)] if about.stop else []
    start += ["handles = []"]
    some_complex = any(dtype is not None and dtype.is_complex for dtype in map(dtype_of, about.kept))
    call = called(about.modules.model if about.modules is not None else None)
    end = ["try:", "    for layer in layers:", *register, run(about.plain_result, about.backward, some_complex, call)]
    end += [*(_STOPPED if about.stop else []), REMOVE]
    return script(
        "\n".join(start),
        helper(follow) if follow else "",
        tensors_in(by_walk) if needs_list else "",
        _STOP if about.stop else "",
        define,
        _KEEP_GRAD.format(kept=keep.format("grad")) if about.gradients else "",
        before,
        hook,
        "\n".join(end),
        about.tail,
    )


_FLOW = """\
def size_of(tensors):
    values = torch.cat([tensor.flatten().abs().double() for tensor in tensors])
    finite = values[values.isfinite()]
    zeros = 100 * (values == 0).double().mean()
    return finite.mean().item(), finite.max().item(), zeros.item()


flow = []  # layer name, then mean |x|, max |x| and zeros %"""

_OUTPUTS = """
for name in outputs:
    for output in outputs[name]:
        flow.append((name, size_of(tensors_in(output))))"""

_BOTH = """, of output and gradient
for name in outputs:
    for output, arrived in zip(outputs[name], grads[name]):
        reached = [grad for grad in arrived if grad is not None]
        row = (name, size_of(tensors_in(output)), size_of(reached) if reached else None)
        flow.append(row)"""


def of_flow(rows: Sequence[Mapping[str, object]]) -> str:
    """Write what the numbers of `gradient_flow` are made of; its rows are all that is known."""
    names: dict[str, int] = {}
    for row in rows:
        label = str(row["call"])
        base, _, number = label.rpartition("#")
        name = base if number.isdecimal() and names.get(base) == int(number) - 1 else label
        names[name] = names.get(name, 0) + 1
    gradients = any("mean |grad|" in row for row in rows)
    listed = ["" if name == "(root)" else name for name in names]
    about = Pass(
        listed, None, gradients, False, Form(), backward=gradients, tail=_FLOW + (_BOTH if gradients else _OUTPUTS)
    )
    return write(about)


def _why(form: Form | None) -> list[str]:
    """Write comments on how a tensor is kept."""
    lines = ["    # Detached, it keeps no graph alive; copied, nothing in place can overwrite it."]
    if form is not None and form.sample is not None:
        lines += ["    # The slice takes the samples you want, and leaves the batch axis there."]
    if form is not None and (form.dtype is not None or form.device is not None):
        lines += ["    # With copy=True you get a copy even where there is nothing to convert."]
    return lines


def _grads_lines(about: Pass, grads: str, plain: bool) -> list[str]:
    known = about.repeats or about.raised
    if plain:
        place = "call"
        lines = (
            []
            if known
            else [
                f"    of_layer = {grads}.setdefault(name, [])",
                "    of_layer.append(None)  # stays None if no gradient arrives",
            ]
        )
        into = f"{grads}[name]" if known else "of_layer"
        place = "call" if known else "len(of_layer) - 1"
        return [
            *lines,
            "    if output.requires_grad:",
            f"        handles.append(output.register_hook(keep_grad({into}, {place})))",
        ]
    return [
        "    tensors = tensors_in(output)",
        "    arrived = [None] * len(tensors)  # one gradient for each tensor",
        f"    {grads}[name][call] = arrived" if known else f"    {grads}.setdefault(name, []).append(arrived)",
        "    for place, tensor in enumerate(tensors):",
        "        if tensor.requires_grad:",
        "            handles.append(tensor.register_hook(keep_grad(arrived, place)))",
    ]


def _before(about: Pass, keep: str, function: str, outputs: str, grads: str, plain: bool) -> str:
    """Write the forward pre-hook."""
    lines = [f"def before(module, args{', kwargs' if about.inputs else ''}):"]
    lines += ["    name = layers[module]", "    order.append(name)"]
    if about.inputs:
        if plain:
            lines += [f"    args = tuple({keep.format('arg')} for arg in args)"]
        else:
            lines += [f"    args, kwargs = map_tensors({function}, (args, kwargs))"]
        lines += ["    received.setdefault(name, []).append((args, kwargs))"]
    if about.repeats or about.raised:
        lines += [
            f"    calls = {outputs}.setdefault(name, [])",
            "    running.append((name, len(calls)))",
            "    calls.append(None)  # until the layer returns",
        ]
        lines += [f"    {grads}.setdefault(name, []).append(None)"] if about.gradients else []
    elif not about.inputs:
        lines[1:1] = ["    # A layer that runs inside another one returns first: here you note who began first."]
    return "\n".join(lines)


def _keeping(about: Pass) -> tuple[str, str]:
    """Return an expression that keeps `{}`, and the function that it calls, if any."""
    form = about.form
    dtypes = {dtype_of(value) for value in about.kept}
    if form is None:
        maybe = not about.ran or any(isinstance(s, Stats) and math.isnan(s.mean) for s in about.kept)
        # Of layers that have not run, those that surely return one tensor return a real one.
        known = about.ran or about.out == {"tensor"}
        is_complex = not known or any(dtype is not None and dtype.is_complex for dtype in dtypes)
        if is_complex:
            first = "\n    values = tensor.detach()\n    values = values.abs() if values.is_complex() else values"
            start = _STATS.format(guard=_GUARD if maybe else "")
            return "stats_of({})", start.replace("\n    values = tensor.detach()", f"{first}\n    values = values")
        return "stats_of({})", _STATS.format(guard=_GUARD if maybe else "")
    floats = about.ran and all(isinstance(v, Tensor) and v.is_floating_point() for v in about.kept)
    moves = [f"{str(form.device)!r}"] if form.device is not None else []
    some_scalars = form.sample is not None and about.scalars
    some_others = form.dtype is not None and not floats
    if not (some_scalars or some_others):
        expression = "{}.detach()" + (_index(form.sample) if form.sample is not None else "")
        moves += [str(form.dtype)] if form.dtype is not None else []
        return expression + (f".to({', '.join(moves)}, copy=True)" if moves else ".clone()"), ""
    lines = ["def kept(tensor):", "    tensor = tensor.detach()  # without the graph"]
    if form.sample is not None:
        lines += ["    if tensor.dim():  # a number has no samples"] if some_scalars else []
        lines += [f"    {'    ' * some_scalars}tensor = tensor{_index(form.sample)}  # the batch axis stays"]
    if some_others:
        lines += ["    if tensor.is_floating_point():", f"        tensor = tensor.to({form.dtype})"]
    elif form.dtype is not None:
        moves += [str(form.dtype)]
    lines += [f"    return tensor.to({', '.join(moves)}, copy=True)" if moves else "    return tensor.clone()"]
    return "kept({})", "\n".join(lines)


def _index(sample: slice | None) -> str:
    parts = [sample.start, sample.stop] if sample is not None else [None, None]
    text = ":".join("" if part is None else str(part) for part in parts)
    step = sample.step if sample is not None else None
    return f"[{text}]" if step is None else f"[{text}:{step}]"
