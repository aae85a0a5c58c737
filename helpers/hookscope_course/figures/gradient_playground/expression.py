"""Parse a small expression, run it forward and backward with hooks, and write it as torch code."""

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
    """One step of an expression: its name, its code, and the tensors in it, once per use."""

    name: str
    text: str
    operands: tuple[str, ...]


@dataclass
class TensorRecord:
    """The values and gradients of one tensor in the last backward pass.

    Attributes:
        made: the code of its step; "leaf" for a leaf of the expression.
        value: its value.
        is_leaf: the attribute of the tensor, as are `requires_grad` and `retains_grad`.
        arrived: the gradient before its hooks; None if no gradient arrived.
        saw: the gradient that its hook got; None without a hook, or if it did not fire.
        returned: the gradient that its hook returned.
        before: `.grad` before the pass, and before it is set to None.
        after: `.grad` after the pass.

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
    """The gradient flow of one use of an operand: incoming gradient, local gradient, and their product."""

    back: float
    local: float
    on: float


@dataclass
class ExpressionRun:
    """A run: the tensors by name, the flow from each step to its operands, and the pairs where gradients can flow."""

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    edges: dict[tuple[str, str], tuple[Flow, ...]] = field(default_factory=dict)
    ways: list[tuple[str, str]] = field(default_factory=list)


def parse(text: str) -> list[Step]:
    """Parse steps such as ``d = a * b; e = d.relu()``, with one operation each.

    Raises:
        ValueError: a step is not valid, or is not used.

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
            raise ValueError(f"{line!r} is not a step. Write a name, = and one operation, as in 'd = a * b'") from None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name) or len(statement.targets) > 1:
            raise ValueError(f"{line!r} is not a step. Write a name, = and one operation, as in 'd = a * b'")
        if target.id in used or any(target.id == step.name for step in steps):
            raise ValueError(f"{line!r}: {target.id} is used already. Use a new name for every step")
        operands = _operands(statement.value, line)
        if target.id in operands or target.id in _RESERVED or set(operands) & set(_RESERVED):
            raise ValueError(f"{line!r}: a step cannot use its own name or {', '.join(_RESERVED)}. Use other names")
        used.update(operands)
        steps.append(Step(target.id, ast.unparse(statement.value), operands))
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise ValueError(f"the expression has {len(steps)} steps. Write 1 to {_MOST_STEPS}, separated by ;")
    for step in steps[:-1]:
        if step.name not in used:
            raise ValueError(f"{step.name} is not used in a later step. Use it, or leave it out")
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
            raise ValueError(f"{line!r}: no method {value.func.attr!r}. The methods are {', '.join(_METHODS)}")
        parts = [value.func.value]
    names = tuple(part.id for part in parts if isinstance(part, ast.Name))
    others = [part for part in parts if not isinstance(part, ast.Name)]
    if not names or not all(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in others):
        raise ValueError(f"{line!r}: write one operation of tensors and numbers, as in 'd = a * b' or 'd = a.relu()'")
    return names


def list_leaves(steps: list[Step]) -> list[str]:
    """Return the names that no step assigns, in alphabetical order."""
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
    """Run forward and backward `runs` times with the same leaves; only forward if `runs` is 0.

    Raises:
        ValueError: torch refuses a hook or `retain_grad`, or the last step does not require grad.

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
                raise ValueError(f"{steps[-1].name} does not require grad, so backward() fails. Change the last step")
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
    """Record the gradient that arrives at a tensor. This hook fires first and returns None."""

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
            raise ValueError(f"torch refuses {what} on {name}, which does not require grad: {error}") from None


def _record_flow(step: Step, made: Tensor, tensors: Mapping[str, Tensor], record: ExpressionRun) -> None:
    """Record the gradient that the node of a step passes to each operand."""
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
            raise ValueError(f"torch makes more than one node of {step.text!r}. Write it as several steps")
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
    """Compute the local gradient of a step for each use of an operand separately."""
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
    """Write plain torch code that does what `run_expression` does, and prints every `.grad` that can be set."""

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
