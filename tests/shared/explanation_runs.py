"""Run the code that `explain` wrote, and compare what it finds with what hookscope found."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import census
from hookscope.captures.call import NotCapturedError
from hookscope.captures.result import Capture
from hookscope.explanations.explain import explain
from tests.shared.awkward_models import Case, difference, tensors_in


def explain_and_check(obj: object) -> str:
    """Explain, and check what holds for all code that is written."""
    explanation = explain(obj)
    code = str(explanation)
    assert "hookscope" not in code
    assert "\t" not in code
    assert not [line for line in code.splitlines() if line != line.rstrip()]
    tree = ast.parse(code)
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    allowed = {"import torch", "import dataclasses", "import itertools", "from collections.abc import Mapping"}
    assert set(imports) <= allowed
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert ("torch" in used) == ("import torch" in imports)
    assert code == str(explain(obj)), "written differently the second time"
    return code


def run_code(code: str, model: nn.Module, inputs: tuple[Any, ...], seed: int = 1) -> dict[str, Any]:
    """Run the code with nothing but `model` and `inputs`; what it leaves behind."""
    names: dict[str, Any] = {"model": model, "inputs": inputs}
    before = len(census(model))
    torch.manual_seed(seed)
    try:
        exec(compile(code, "explained", "exec"), names)
    finally:
        assert len(census(model)) == before
    return names


def sum_outputs(output: Any) -> Tensor:
    """The loss of the written code."""
    return sum(t.sum() for t in tensors_in(output) if t.requires_grad)


def run_watched(case: Case, make: Callable[[nn.Module], AbstractContextManager[Any]], backward: bool = True) -> Any:
    """Run a case inside `make(model)`, forward and backward."""
    model, args, _ = case
    torch.manual_seed(1)
    with make(model) as seen:
        loss = sum_outputs(model(*args))
        if backward and isinstance(loss, Tensor):
            loss.backward()
    return seen


def get_from_call(call: Any, what: str) -> Any:
    try:
        return getattr(call, what)
    except NotCapturedError:
        return None


def assert_same(names: dict[str, Any], seen: Capture, *, gradients: bool = False, inputs: bool = False) -> None:
    """Compare what the code found with what the capture kept, in plain tuples, lists and dicts."""
    assert set(names["outputs"]) == {call.layer for call in seen.calls}
    for call in seen.calls:
        at = call.layer, call.number - 1
        assert not difference(names["outputs"][at[0]][at[1]], convert_to_plain(call.output), call.label)
        if gradients:
            known = tensors_in(get_from_call(call, "grad"))
            found = [t for t in tensors_in([names["grads"][at[0]][at[1]]]) if t is not None]
            assert not difference(found, known, f"grad {call.label}")
        if inputs:
            assert not difference(
                names["received"][at[0]][at[1]], convert_to_plain((call.args, call.kwargs)), call.label
            )
    for name, found in names["outputs"].items():
        assert len(found) == len(seen[name].calls)


def convert_to_plain(value: Any) -> Any:
    """Put plain tuples, lists and dicts in the place of those of other classes."""
    if isinstance(value, Mapping):
        return {key: convert_to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [convert_to_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
