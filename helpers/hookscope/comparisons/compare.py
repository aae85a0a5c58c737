"""Show the gradients that two backward hooks get as a table, and identify each of them by its values.

A legacy hook (`register_backward_hook`) is registered on the autograd node of the module's output and gets the
gradients that this node computes. A full hook (`register_full_backward_hook`) gets the gradients of the module's
positional arguments. (Source: `torch.nn.Module._call_impl`.)
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Never

import torch
from torch import Tensor, nn

from hookscope.comparisons.backward_run import BackwardRun, Gradients, HookView, is_close
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.picture import Result
from hookscope.pictures.words import visible
from hookscope.preserve import preserve_rng_state as preserve_rng_state

__all__ = ["BackwardComparison", "HookView", "compare_backward_hooks"]

_ALL_ZEROS = "all zeros"


class BackwardComparison(Result):
    """The gradients that a legacy and a full backward hook get; made by `compare_backward_hooks`.

    Attributes:
        legacy: the gradients of the legacy hook, a `HookView`.
        full: the gradients of the full hook, a `HookView`.
        explanation: a few sentences that explain both.

    """

    def __init__(self, name: str, legacy: BackwardRun, full: BackwardRun, plain: BackwardRun) -> None:
        self.legacy = legacy.view("legacy", plain)
        self.full = full.view("full", plain)
        self._name = name
        self._meanings = {"legacy": _meanings(self.legacy, legacy, plain), "full": _meanings(self.full, full, plain)}
        sentences = [
            _explain_legacy(self.legacy, self._meanings["legacy"], legacy),
            _explain_full(self.full, self._meanings["full"], full),
            _explain_change(full, plain),
        ]
        self.explanation = " ".join(filter(None, sentences))

    @property
    def caption(self) -> str:
        """The class of the module."""
        return f"The gradients that backward hooks on {self._name} get"

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The explanation."""
        return (self.explanation,)

    def _lines(self) -> list[str]:
        return [visible(self.explanation)]

    def __repr__(self) -> str:
        return f"{self.table()!r}\n{visible(textwrap.fill(self.explanation, 100))}"

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each entry of `grad_input` and `grad_output`, with a column for each hook."""
        columns: dict[str, dict[str, object]] = {
            "legacy hook": self._cells(self.legacy),
            "full hook": self._cells(self.full),
        }
        names = list(dict.fromkeys(name for cells in columns.values() for name in cells))
        # Sort by kind, because entries that only one hook has come last in the merged names.
        order = ("called", "node", "next nodes", "grad_input", "grad_output", "warning", "error")
        names.sort(key=lambda name: order.index(name.partition("[")[0]))
        return [{"what": name} | {column: cells.get(name, "") for column, cells in columns.items()} for name in names]

    def _cells(self, view: HookView) -> dict[str, object]:
        cells: dict[str, object] = {
            "called": "no" if not view.called else "once" if view.firings == 1 else f"{view.firings} times",
            "node": view.node or "none",
            "next nodes": ", ".join(view.next_nodes),
        }
        for name, gradients in (("grad_input", view.grad_input), ("grad_output", view.grad_output)):
            if gradients == ():
                cells[name] = "()"
            meanings = self._meanings[view.kind]
            for index, gradient in enumerate(gradients or ()):
                meaning = meanings[index] if name == "grad_input" else ""
                shape = "None" if gradient is None else str(tuple(gradient.shape))
                same = "same values as " if name == "grad_input" and index in _repeated_meanings(view, meanings) else ""
                cells[f"{name}[{index}]"] = f"{shape}: {same}{meaning}" if meaning else shape
        shown = [textwrap.shorten(text, 64, placeholder=" …") for text in view.warnings]
        if shown:
            cells["warning"] = "; ".join(shown)
        if view.error:
            cells["error"] = textwrap.shorten(view.error, 64, placeholder=" …")
        return cells


def compare_backward_hooks(
    module: nn.Module, *args: Any, kwargs: Mapping[str, Any] | None = None, **_unknown: Never
) -> BackwardComparison:
    """Run a module with a legacy and with a full backward hook, and compare the gradients that they get.

    The module runs three times on deep copies: without a hook, with `register_backward_hook`, and with
    `register_full_backward_hook`. Each run goes backward from the sum of the output, so `grad_output` is all ones. Your
    module, its gradients and the inputs do not change. Limits: https://hookscope.github.io/hookscope/limits/compare_backward_hooks.html

    Args:
        module: the module to look at.
        *args: its positional arguments, with tensors of any shape.
        kwargs: its keyword arguments, such as ``{"mask": mask}``.

    Raises:
        TypeError: `module` is not a module, or it or an input cannot be copied; or a keyword is unknown.
        ValueError: nothing in the output requires a gradient, or the output begins with a string.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> both = compare_backward_hooks(nn.Linear(4, 5), torch.ones(3, 4, requires_grad=True))
        >>> both.legacy.shapes["grad_input"]
        ((5,), (3, 4), (4, 5))
        >>> both.full.shapes["grad_input"]
        ((3, 4),)
        >>> print(both.explanation.partition(". ")[0])
        The legacy hook sits on AddmmBackward0, the node of the output, and gets the gradients that this node computes:
        grad_input[0] is bias.grad, grad_input[1] is input.grad and grad_input[2] is weight.grad.T

    """
    kwargs = check_kwargs(compare_backward_hooks, kwargs, _unknown)
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise TypeError(f"module must be a module, not the class {module.__name__}; make one: {module.__name__}(...)")
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    runs = {}
    with torch.inference_mode(False), torch.enable_grad():
        for kind in ("plain", "legacy", "full"):
            with preserve_rng_state(module, args, kwargs), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                runs[kind] = BackwardRun(kind, module, args, kwargs)
            runs[kind].warnings = tuple(str(warning.message) for warning in caught)
    return BackwardComparison(type(module).__name__, runs["legacy"], runs["full"], runs["plain"])


def _meanings(view: HookView, run: BackwardRun, plain: BackwardRun) -> list[str]:
    """Name the gradient that each entry of grad_input is equal to, or `""`."""
    gradients = plain.gradients if view.error else run.gradients
    return [_meaning(entry, view.grad_output or (), gradients) for entry in view.grad_input or ()]


def _meaning(entry: Tensor | None, grad_output: Gradients, gradients: Mapping[str, Tensor | None]) -> str:
    if entry is None:
        return ""
    known = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    same = [name for name, gradient in known.items() if is_close(entry, gradient)]
    same = same or [
        f"{name}.T" for name, gradient in known.items() if gradient.ndim == 2 and is_close(entry, gradient.T)
    ]
    if same:
        return " = ".join(same[:3]) + (" = …" if len(same) > 3 else "")
    if not entry.to_dense().any() if entry.layout != torch.strided else not entry.any():
        return _ALL_ZEROS
    for index, gradient in enumerate(grad_output):
        if gradient is not None and is_close(entry, gradient):
            return f"grad_output[{index}]"
        if gradient is not None and is_close(entry.flatten(), gradient.flatten()):
            return f"grad_output[{index}] in another shape"
    return ""


def _repeated_meanings(view: HookView, meanings: Sequence[str]) -> list[int]:
    """List the entries of a legacy hook that are equal to the same gradient: at most one of them is that gradient."""
    if view.kind != "legacy":
        return []
    return [
        index
        for index, meaning in enumerate(meanings)
        if ".grad" in meaning and " = " not in meaning and meanings.count(meaning) > 1
    ]


def _explain_legacy(view: HookView, meanings: list[str], run: BackwardRun) -> str:
    where = f"The legacy hook sits on {view.node}, the node of the {_first(run)}"
    if view.error:
        return f"With the legacy hook, the module fails: {_first_sentence(view.error)}"
    if not view.node:
        return "The legacy hook is not called, because the output has no autograd node that it could be registered on."
    if not view.called:
        return f"{where}, but no gradient reaches that node, so the hook is not called."
    entries = _in_words(view, meanings, "the gradient of a step inside the module")
    return f"{where}, and gets the gradients that this node computes: {entries}.{_repeated(view)}"


def _explain_full(view: HookView, meanings: list[str], run: BackwardRun) -> str:
    if view.error:
        return f"With the full hook, the module fails: {_first_sentence(view.error)}"
    if not view.called:
        if not run.followed:
            needs = "because the output must be a tensor or a tuple of tensors"
            return f"The full hook is not called, {needs}, and it is of type {run.output}."
        return "The full hook is not called, because no gradient reaches a tensor that is directly in the output."
    if not view.grad_input:
        return "The full hook gets an empty grad_input, because there is no positional argument." + _keywords(run)
    why = []
    for index, entry in enumerate(view.grad_input):
        name = run.arguments[index] if index < len(run.arguments) else f"args[{index}]"
        if entry is None and name in run.tensors:
            why.append(f"{name}, which requires no gradient")
        elif entry is None:
            why.append(f"{name}, which is not a tensor")
        elif name not in run.wanting:
            why.append(f"{name}, which requires no gradient")
        else:
            why.append(name)
    entries = _in_words(view, meanings, "the gradient of this argument as the module uses it", why)
    return f"The full hook gets one entry per positional argument: {entries}.{_keywords(run)}{_repeated(view)}"


def _explain_change(full: BackwardRun, plain: BackwardRun) -> str:
    """Name the arguments whose gradient the full hook changes: an unused one gets zeros instead of None."""
    changed = [
        name for name, gradient in full.gradients.items() if gradient is not None and plain.gradients.get(name) is None
    ]
    return f"Without a hook, {_join(changed)} would be None." if changed and not full.error else ""


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def _first(run: BackwardRun) -> str:
    return "output" if run.output == "tensor" else f"first tensor in the output (of type {run.output})"


def _keywords(run: BackwardRun) -> str:
    return f" It has no entry for keyword arguments ({', '.join(run.keywords)})." if run.keywords else ""


def _repeated(view: HookView) -> str:
    return f" It was called {view.firings} times; these are the values of the first call." if view.firings > 1 else ""


def _in_words(view: HookView, meanings: list[str], otherwise: str, whose: Sequence[str] = ()) -> str:
    words = []
    repeated = _repeated_meanings(view, meanings)
    for index, (entry, meaning) in enumerate(zip(view.grad_input or (), meanings, strict=True)):
        about = f" for {whose[index]}" if whose and (entry is None or meaning == _ALL_ZEROS) else ""
        shape = "" if entry is None else f" {tuple(entry.shape)}"
        what = "None" if entry is None else meaning or otherwise + "," + shape
        words.append(f"grad_input[{index}] {'has the same values as' if index in repeated else 'is'} {what}{about}")
    return _join(words) if words else "nothing"


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
