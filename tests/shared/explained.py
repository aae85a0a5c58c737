"""Run the code that `explain` wrote, and compare what it finds with what hookscope found."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import census
from hookscope.captures.call import NotCapturedError
from hookscope.captures.result import Capture
from hookscope.explanations.explain import explain
from tests.shared.awkward import Case, difference, tensors_in


def checked(obj: object) -> str:
    """Explain, and check what holds for all code that is written."""
    explanation = explain(obj)
    code = str(explanation)
    assert "hookscope" not in code
    assert "\t" not in code
    assert not [line for line in code.splitlines() if len(line) > 90]
    assert not [line for line in code.splitlines() if line != line.rstrip()]
    tree = ast.parse(code)
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    allowed = {"import torch", "from torch import nn", "import copy", "import numpy as np"}
    assert set(imports) <= allowed | {"from collections.abc import Mapping"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert ("torch" in used, "nn" in used) == ("import torch" in imports, "from torch import nn" in imports)
    assert code == str(explain(obj)), "written differently the second time"
    return code


def run(code: str, model: nn.Module, inputs: tuple[Any, ...], seed: int = 1) -> dict[str, Any]:
    """Run the code with nothing but `model` and `inputs`; what it leaves behind."""
    names: dict[str, Any] = {"model": model, "inputs": inputs}
    before = len(census(model))
    torch.manual_seed(seed)
    try:
        exec(compile(code, "explained", "exec"), names)
    finally:
        assert len(census(model)) == before
    return names


def total(output: Any) -> Tensor:
    """The loss of the written code."""
    return sum(t.sum() for t in tensors_in(output) if t.requires_grad)


def watched(case: Case, make: Callable[[nn.Module], AbstractContextManager[Any]], backward: bool = True) -> Any:
    """Run a case inside `make(model)`, forward and backward."""
    model, args, _ = case
    torch.manual_seed(1)
    with make(model) as seen:
        loss = total(model(*args))
        if backward and isinstance(loss, Tensor):
            loss.backward()
    return seen


def of_call(call: Any, what: str) -> Any:
    try:
        return getattr(call, what)
    except NotCapturedError:
        return None


def assert_same(names: dict[str, Any], seen: Capture, *, gradients: bool, inputs: bool) -> None:
    """Compare what the code found with what the capture kept; hooks do not see what comes into a model later."""
    late = Counter(seen._hooks.arrived)
    there = {name: layer.calls[: len(layer.calls) - late[name]] for name, layer in seen.items()}
    calls = [call for call in seen.calls if call in there[call.layer]]
    assert names["order"] == [call.layer for call in calls]
    outputs = names["outputs"]
    assert set(outputs) == {call.layer for call in calls}
    for name, own in there.items():
        assert len(outputs.get(name, [])) == len(own), name
        for number, call in enumerate(own):
            assert not difference(outputs[name][number], of_call(call, "output"), call.label)
            if gradients:
                found = names["grads"][name][number]
                known = tensors_in(of_call(call, "grad"))
                assert not difference([t for t in tensors_in([found]) if t is not None], known, f"grad {call.label}")
            if inputs:
                assert not difference(names["received"][name][number], (call.args, call.kwargs), f"args {call.label}")
