"""Read a small expression, run it forward and backward with hooks on its tensors, and write it as torch code."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "KINDS",
    "MOST_RUNS",
    "ExpressionRun",
    "Flow",
    "Step",
    "list_leaves",
    "parse",
    "run_expression",
    "write_code",
]

KINDS = ["nothing", "retain_grad", "hook", "hook, then retain_grad", "retain_grad, then hook"]
MOST_RUNS = 20
_MOST_STEPS = 8
_METHODS = ("abs", "clone", "cos", "detach", "exp", "log", "relu", "sigmoid", "sin", "sqrt", "square", "tanh")
_RESERVED = ("torch", "range", "print")


@dataclass(frozen=True)
class Step:
    """One line of the expression: the name it makes, what makes it, and the tensors in that, as often as they stand."""

    name: str
    text: str
    operands: tuple[str, ...]


@dataclass
class TensorRecord:
    """What was seen of one tensor; gradients are those of the last backward pass.

    Attributes:
        made: what makes it; "leaf" for a leaf of the expression.
        value: its number.
        is_leaf: torch's own, as are `requires_grad` and `retains_grad`.
        arrived: the gradient before any hook of the tensor, None if none came.
        saw: what the hook was given, None if there is no hook or it was not called.
        returned: what the hook returned.
        before: `.grad` before the pass, and before it is zeroed.
        after: `.grad` after it.

    """

    made: str
    value: float
    is_leaf: bool
    requires_grad: bool
    retains_grad: bool
    arrived: float | None = None
    saw: float | None = None
    returned: float | None = None
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Flow:
    """One use of an operand by a step: what comes back to the step, its local gradient there, and what flows on."""

    back: float
    local: float
    on: float


@dataclass
class ExpressionRun:
    """What was seen of all tensors, by name; what flowed from a step to an operand; where a gradient can flow."""

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    edges: dict[tuple[str, str], tuple[Flow, ...]] = field(default_factory=dict)
    ways: list[tuple[str, str]] = field(default_factory=list)


def parse(text: str) -> list[Step]:
    """Read steps such as ``d = a * b; e = d.relu()``, one operation each.

    Raises:
        ValueError: it cannot be read, or a step is not used.

    Example:
        >>> parse("d = a * b; e = d * d")[1].operands
        ('d', 'd')

    """
    steps: list[Step] = []
    used: set[str] = set()
    for line in filter(None, (part.strip() for part in re.split(r"[;\n]", text))):
        try:
            (statement,) = ast.parse(line).body
        except (SyntaxError, ValueError):
            raise ValueError(f"{line!r} is no step: write name = one operation, as in 'd = a * b'") from None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name) or len(statement.targets) > 1:
            raise ValueError(f"{line!r} is no step: write name = one operation, as in 'd = a * b'")
        if target.id in used or any(target.id == step.name for step in steps):
            raise ValueError(f"{line!r}: {target.id} is there already; take a new name for every step")
        operands = _operands(statement.value, line)
        if target.id in operands or target.id in _RESERVED or set(operands) & set(_RESERVED):
            raise ValueError(f"{line!r}: {target.id} cannot be used like that; take other names")
        used.update(operands)
        steps.append(Step(target.id, ast.unparse(statement.value), operands))
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise ValueError(f"{len(steps)} steps: give 1 to {_MOST_STEPS}, separated by ;")
    for step in steps[:-1]:
        if step.name not in used:
            raise ValueError(f"{step.name} is not used on the way to {steps[-1].name}; use it, or leave it out")
    return steps


def _operands(value: ast.expr, line: str) -> tuple[str, ...]:
    """Return the names of the tensors in one operation."""
    parts: list[ast.expr] = []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
        parts = [value.left, value.right]
    elif isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        parts = [value.operand]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not (value.args or value.keywords):
        if value.func.attr not in _METHODS:
            raise ValueError(f"{line!r}: no method {value.func.attr!r} here; there are {', '.join(_METHODS)}")
        parts = [value.func.value]
    names = tuple(part.id for part in parts if isinstance(part, ast.Name))
    others = [part for part in parts if not isinstance(part, ast.Name)]
    if not names or not all(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in others):
        raise ValueError(f"{line!r}: write one operation of tensors and numbers, as in 'd = a * b' or 'd = a.relu()'")
    return names


def list_leaves(steps: list[Step]) -> list[str]:
    """Return the names that are used and never made, in the order of their letters."""
    made = {step.name for step in steps}
    return sorted({name for step in steps for name in step.operands} - made)


def run_expression(
    steps: list[Step],
    values: Mapping[str, float],
    choices: Mapping[str, str],
    factors: Mapping[str, float],
    zero_grad: bool,
    runs: int,
) -> ExpressionRun:
    """Go forward and backward `runs` times with the same leaves, and only forward if it is 0.

    Raises:
        ValueError: torch refuses a hook or `retain_grad`, or the last step requires no gradient.

    """
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")
        record = ExpressionRun()
        leaves = {name: torch.tensor(values[name], requires_grad=True) for name in list_leaves(steps)}
        for name, leaf in leaves.items():
            record.tensors[name] = _make_record(leaf, "leaf")
            _record_arrival(name, leaf, record)
            _register_hooks(name, leaf, choices, factors, record)
        for run in range(max(runs, 1)):
            for name, leaf in leaves.items():
                record.tensors[name].before = _number(leaf.grad)
                if zero_grad:
                    leaf.grad = None
            tensors = dict(leaves)
            record.ways = []
            for step in steps:
                made = eval(step.text, {"__builtins__": {}}, dict(tensors))
                record.tensors[step.name] = _make_record(made, step.text)
                if made.requires_grad:
                    _record_flow(step, made, tensors, record)
                    _record_arrival(step.name, made, record)
                _register_hooks(step.name, made, choices, factors, record)
                tensors[step.name] = made
            if not made.requires_grad:
                raise ValueError(f"{steps[-1].name} requires no gradient, so nothing can go backward from it")
            if run < runs:
                made.backward()
        for name, tensor in tensors.items():
            record.tensors[name].retains_grad = tensor.retains_grad
            record.tensors[name].after = _number(tensor.grad)
        return record


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)


def _make_record(tensor: Tensor, made: str) -> TensorRecord:
    return TensorRecord(made, float(tensor.detach()), tensor.is_leaf, tensor.requires_grad, tensor.retains_grad)


def _record_arrival(name: str, tensor: Tensor, record: ExpressionRun) -> None:
    """Note what arrives at a tensor. This hook comes first and returns nothing, so it changes nothing."""

    def note(grad: Tensor) -> None:
        record.tensors[name].arrived = float(grad)

    tensor.register_hook(note)  # type: ignore[no-untyped-call]


def _register_hooks(
    name: str, tensor: Tensor, choices: Mapping[str, str], factors: Mapping[str, float], record: ExpressionRun
) -> None:
    factor = factors.get(name, 2.0)

    def hook(grad: Tensor) -> Tensor:
        result = grad * factor
        record.tensors[name].saw, record.tensors[name].returned = float(grad), float(result)
        return result

    for what in choices.get(name, "nothing").split(", then "):
        try:
            if what == "hook":
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            elif what == "retain_grad":
                tensor.retain_grad()
        except RuntimeError as error:
            raise ValueError(f"torch refuses {what} on {name}, which requires no gradient: {error}") from None


def _record_flow(step: Step, made: Tensor, tensors: Mapping[str, Tensor], record: ExpressionRun) -> None:
    """Note what the node of a step passes on to each operand."""
    node: Any = made.grad_fn
    places: dict[str, list[int]] = {}
    for name in dict.fromkeys(step.operands):
        tensor = tensors[name]
        if not tensor.requires_grad:
            continue
        for place, (after, _) in enumerate(node.next_functions):
            if after is not None and (after is tensor.grad_fn or getattr(after, "variable", None) is tensor):
                places.setdefault(name, []).append(place)
        if len(places.get(name, [])) != step.operands.count(name):
            raise ValueError(f"torch makes more than one node of {step.text!r}; write it as several steps")
        record.ways.append((step.name, name))

    slopes = _compute_local_gradients(step, tensors)

    def note(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
        back = grad_outputs[0]
        for name, here in places.items():
            flows = zip((grad_inputs[place] for place in here), slopes[name], strict=True)
            record.edges[step.name, name] = tuple(
                Flow(float(back), slope, float(on)) for on, slope in flows if back is not None and on is not None
            )

    node.register_hook(note)


def _compute_local_gradients(step: Step, tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Compute the local gradient of a step by each use of an operand, as if each were a tensor of its own."""
    copies: list[tuple[str, Tensor]] = []

    class SplitUses(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            copies.append((node.id, tensors[node.id].detach().clone().requires_grad_()))
            return ast.Name(f"copy{len(copies) - 1}", node.ctx)

    text = ast.unparse(SplitUses().visit(ast.parse(step.text, mode="eval")))
    made = eval(text, {"__builtins__": {}}, {f"copy{at}": copy for at, (_, copy) in enumerate(copies)})
    slopes: dict[str, list[float]] = {}
    for (name, _), slope in zip(copies, torch.autograd.grad(made, [copy for _, copy in copies]), strict=True):
        slopes.setdefault(name, []).append(float(slope))
    return slopes


def write_code(
    steps: list[Step],
    values: Mapping[str, float],
    choices: Mapping[str, str],
    factors: Mapping[str, float],
    zero_grad: bool,
    runs: int,
) -> str:
    """Write plain torch code that does what `run_expression` does, and prints every `.grad` that can be there."""

    def put_on(name: str) -> list[str]:
        lines = {
            "hook": f"{name}.register_hook(lambda grad: grad * {factors.get(name, 2.0)!r})",
            "retain_grad": f"{name}.retain_grad()",
        }
        return [lines[what] for what in choices.get(name, "nothing").split(", then ") if what in lines]

    leaves = list_leaves(steps)
    lines = ["import torch", ""]
    for name in leaves:
        lines += [f"{name} = torch.tensor({float(values[name])!r}, requires_grad=True)", *put_on(name)]
    loop = []
    if zero_grad and runs > 1:
        loop += [f"{' = '.join(f'{name}.grad' for name in leaves)} = None"]
    for step in steps:
        loop += [f"{step.name} = {step.text}", *put_on(step.name)]
    last = steps[-1].name
    loop.append(f"{last}.backward()" if runs else f"# not run yet: {last}.backward()")
    lines += ["", f"for _ in range({runs}):", *(f"    {line}" for line in loop)] if runs > 1 else ["", *loop]
    lines.append("")
    for name in [*leaves, *(step.name for step in steps)]:
        if name in leaves or "retain_grad" in choices.get(name, ""):
            lines.append(f'print("{name}.grad", {name}.grad)')
    return "\n".join(lines)
