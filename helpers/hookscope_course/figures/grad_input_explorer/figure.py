"""Compare what a legacy and a full backward hook get on a layer, and see why."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import nn

from hookscope.comparisons import backward_run
from hookscope.comparisons.compare import BackwardComparison, compare_backward_hooks
from hookscope.graphs.graph import Graph, graph
from hookscope.pictures.picture import Rows
from hookscope.preserve import preserve_rng_state
from hookscope.widgets.base import HookWidget, assets
from hookscope_course.figures.grad_input_explorer.example_layers import LAYERS, ExampleLayer
from hookscope_course.figures.grad_input_explorer.hook_graph import draw_still, place_graph
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.replay import ALL, Choice, Replay

__all__ = ["GradInputExplorer"]


_CLONED = "The input is a clone, because torch does not allow an in-place operation on a leaf that requires grad."
_CHOICES = ("layer", "bias", "inplace", "input_shape", "requires_grad")


def _list_switches(explorer: GradInputExplorer) -> Iterator[Choice]:
    switches = ("bias", "inplace", "requires_grad")
    for name, kind in LAYERS.items():
        for shape in kind.shapes:
            for values in product((False, True), repeat=len(switches)):
                yield {"layer": name, "input_shape": shape, **dict(zip(switches, values, strict=True))}


class GradInputExplorer(HookWidget):
    """Compare what `register_backward_hook` (legacy) and `register_full_backward_hook` get on a layer.

    Each choice calls `hookscope.compare_backward_hooks`. The graph shows where each hook sits. The page tells what they
    get when the learner has said whether it is the same. If you choose another layer, the other choices are reset.

    Args:
        module: your own module, instead of a layer by name. The widget runs copies of it.
        *inputs: positional arguments of your module.
        kwargs: keyword arguments of your module.
        **chosen: attributes to start with: `layer` (such as "Conv2d" or "x + y + z"), `bias`, `inplace`,
            `input_shape` and `requires_grad`. `comparison`, `outcome` and `verdict` are the results.

    Raises:
        ValueError: the layer or the option does not exist, or the layer refuses the input.
        TypeError: an attribute does not exist, or your module cannot be compared.

    Example:
        >>> explorer = GradInputExplorer()
        >>> explorer.comparison.legacy.shapes["grad_input"]
        ((5,), (3, 4), (4, 5))
        >>> explorer.layer = "Identity"
        >>> explorer.verdict
        'Only the full hook is called. The legacy hook is not, because the output has no autograd node of its own.'

    """

    layer = traitlets.Unicode("Linear").tag(sync=True)
    bias = traitlets.Bool(True).tag(sync=True)
    inplace = traitlets.Bool(False).tag(sync=True)
    input_shape = traitlets.Tuple((3, 4)).tag(sync=True)
    requires_grad = traitlets.Bool(True).tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)  # by the choices as JSON: what the learner said, and what is true
    shown = traitlets.Dict().tag(sync=True)  # everything that the page draws

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay(
        ("layer", "input_shape", "bias", "inplace", "requires_grad"),
        {ALL: _list_switches},
        quiet=("answers",),
        unseen=("png",),
    )

    def __init__(
        self,
        module: nn.Module | None = None,
        *inputs: Any,
        kwargs: Mapping[str, Any] | None = None,
        **chosen: Any,
    ) -> None:
        for name in chosen:
            if name not in _CHOICES:
                raise TypeError(f"GradInputExplorer has no attribute {name!r}. You can set {', '.join(_CHOICES)}")
        self._is_updating, self._is_resetting = True, False
        self._own = (module, inputs, dict(kwargs or {}))
        self._own_name = "" if module is None else f"your {type(module).__name__}"
        self._compared: tuple[object, _HookComparison] | None = None
        super().__init__()
        with self.hold_sync():
            self.layer = chosen.pop("layer", self._own_name or "Linear")
            self._set_defaults()
            for name, value in chosen.items():
                setattr(self, name, value)
            self._update()
        self.observe(self._on_change, list(_CHOICES))
        self._is_updating = False

    @property
    def comparison(self) -> BackwardComparison:
        """The result of `hookscope.compare_backward_hooks`."""
        return self._compare().comparison

    @property
    def outcome(self) -> str:
        """Whether both hooks get the same: "same", "different", "raises" (the full hook), or "never" (called)."""
        return self._compare().outcome

    @property
    def verdict(self) -> str:
        """The difference between both hooks, in a sentence or two."""
        return self._compare().verdict

    def numbers(self) -> Rows:
        """List what each hook got, one row per fact."""
        return self.comparison.table().rows

    def summary(self) -> str:
        """Describe the layer and the places of the hooks, and the difference if the learner has answered."""
        shape = f" {self.input_shape}" if self.layer in LAYERS else ""
        told = f" {self.verdict}\n{self.comparison.explanation}" if self.shown["key"] in self.answers else ""
        return f"GradInputExplorer {self.layer}{shape}: {self._compare().where}{told}"

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Any) -> str:
        name: str = proposal["value"]
        if name not in LAYERS and (name != self._own_name or not name):
            names = [*LAYERS, *filter(None, [self._own_name])]
            raise ValueError(f"no layer {name!r}. Choose one of {', '.join(map(repr, names))}")
        self._compare(layer=name, **self._get_defaults(name))
        return name

    @traitlets.validate("bias", "inplace", "input_shape", "requires_grad")
    def _check_option(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if self._is_resetting:
            return value
        kind = LAYERS.get(self.layer)
        if kind is None:
            raise ValueError(
                f"{name}={value!r} cannot be set, because this explorer shows {self.layer}. Change your module or its "
                "inputs, and create another explorer: GradInputExplorer(module, *inputs)"
            )
        if name in ("bias", "inplace") and name not in kind.options and value != self._get_defaults(self.layer)[name]:
            others = ", ".join(repr(other) for other in LAYERS if name in LAYERS[other].options)
            raise ValueError(f"{self.layer} has no option {name}. These layers have it: {others}")
        if name == "requires_grad" and value and kind.integer:
            raise ValueError(
                f"requires_grad=True is not possible for {self.layer}, because its input contains integers. Choose "
                "another layer"
            )
        if name == "input_shape" and not all(isinstance(size, int) and size > 0 for size in value):
            raise ValueError(f"input_shape={value} must contain positive integers only. Pass {kind.shapes[0]}")
        self._compare(**{name: value})
        return value

    def _get_defaults(self, layer: str) -> dict[str, Any]:
        kind = LAYERS.get(layer)
        shape: tuple[int, ...] = kind.shapes[0] if kind else ()
        return {"bias": True, "inplace": False, "input_shape": shape, "requires_grad": not (kind and kind.integer)}

    def _set_defaults(self) -> None:
        """Set the choices to the defaults of the layer."""
        self._is_resetting = True
        for name, value in self._get_defaults(self.layer).items():
            setattr(self, name, value)
        self._is_resetting = False

    def _on_change(self, change: Any) -> None:
        if self._is_updating:
            return
        self._is_updating = True
        try:
            with self.hold_sync():
                if change["name"] == "layer":
                    self._set_defaults()
                self._update()
        finally:
            self._is_updating = False

    def _compare(self, **other: Any) -> _HookComparison:
        """Compare with the current choices and the replacements in `other`. The last comparison is cached."""
        state = {name: getattr(self, name) for name in _CHOICES} | other
        key = tuple(state.values())
        if self._compared is None or self._compared[0] != key:
            self._compared = (key, self._run_comparison(**state))
        return self._compared[1]

    def _run_comparison(
        self, layer: str, bias: bool, inplace: bool, input_shape: tuple[int, ...], requires_grad: bool
    ) -> _HookComparison:
        kind = LAYERS.get(layer)
        if kind is None:
            module, inputs, kwargs = self._own
            return _HookComparison(module, inputs, kwargs)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    module = kind.make(bias, inplace)
                    inputs = kind.arguments(input_shape, requires_grad, inplace)
                return _HookComparison(module, inputs, {})
            except (RuntimeError, ValueError, IndexError) as error:
                said = str(error).partition("\n")[0]
                shapes = " or ".join(map(str, kind.shapes))
                hint = "" if input_shape in kind.shapes else f". Pass {shapes}"
                raise ValueError(f"{layer} does not accept an input of shape {input_shape} ({said}){hint}") from error

    def _update(self) -> None:
        """Compare, and update the page."""
        with self.catch_errors():
            look, kind = self._compare(), LAYERS.get(self.layer)
            self.alt = look.alt
            self.png = draw_still(look.drawing["wide"], type(look.module).__name__)
            self.shown = {
                "layers": [*([self._own_name] if self._own_name else []), *LAYERS],
                "own": kind is None,
                "shapes": [list(shape) for shape in _list_shapes(kind, self.input_shape)],
                "options": list(kind.options) if kind else [],
                "fixed": _explain_fixed(kind, look.module),
                "rows": _list_rows(look.comparison),
                "title": type(look.module).__name__,
                "key": json.dumps([self.layer, self.input_shape, self.bias, self.inplace, self.requires_grad]),
                "where": look.where,
                "node": look.comparison.legacy.node,
                "outcome": look.outcome,
                "verdict": look.verdict,
                "explanation": look.comparison.explanation,
                "drawing": look.drawing,
                "aside": _CLONED * bool(kind and self.inplace and self.requires_grad),
            }


class _HookComparison:
    """One comparison, its graph, and its text."""

    def __init__(self, module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.module = module
        self.comparison = compare_backward_hooks(module, *inputs, kwargs=kwargs)
        self.graph, self.arguments, at = _trace_graph(module, tuple(inputs), dict(kwargs))
        self.verdict = _write_verdict(self.comparison, self.graph, at)
        self.outcome = _find_outcome(self.comparison)
        node, name = self.comparison.legacy.node, type(module).__name__
        self.drawing = place_graph(self.graph, at, self.arguments, bool(node))
        legacy = f"The legacy hook is on {node}" if node else "There is no node for the legacy hook"
        self.where = f"{legacy}. The full hook is at the edge of the module."
        size = f"Graph of {len(self.graph.nodes)} autograd nodes" if self.graph else "No graph"
        self.alt = f"{size} behind the output of {name}. {self.where}"


def _trace_graph(
    module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Graph | None, list[str], dict[str, int]]:
    """Run a copy without hooks; return the graph behind its first output, the argument names, and their nodes."""
    names = backward_run.argument_names(module, inputs)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        preserve_rng_state(module, inputs, kwargs),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        module, inputs, kwargs, _ = backward_run.copy_inputs(module, inputs, kwargs)
        named = {
            name: value
            for key, argument in zip(names, inputs, strict=True)
            for name, value in backward_run.named_tensors(argument, key)
        }
        # If a module works in place, its argument gets another node.
        before = {name: value.grad_fn for name, value in named.items() if value.requires_grad}
        output = backward_run.first_tensor(module(*inputs, **kwargs), type(module).__name__)
        if output is None or not output.requires_grad:
            return None, names, {}
        kept = {name: value for name, value in named.items() if name in before and value.grad_fn is before[name]}
        found = graph(output, names=kept, model=module)
        nodes: dict[int, Any] = {0: output.grad_fn or torch.autograd.graph.get_gradient_edge(output).node}
        for edge in found.edges:  # each node comes after one that leads to it
            nodes.setdefault(edge.target, nodes[edge.source].next_functions[edge.index][0])
        at = {}
        for name, first in before.items():
            for number, node in nodes.items():
                if name not in at and (node is first if first else getattr(node, "variable", None) is named[name]):
                    at[name] = number
        return found, names, at


def _find_outcome(comparison: BackwardComparison) -> str:
    """Return "same", "different", "raises" if the full hook does, or "never" if one of the hooks is not called."""
    legacy, full = comparison.legacy, comparison.full
    if full.error:
        return "raises"
    if not legacy.error and not (legacy.called and full.called):
        return "never"
    same = not legacy.error and _are_same(legacy.grad_input, full.grad_input)
    return "same" if same else "different"


def _are_same(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    one, other = one or (), other or ()
    return len(one) == len(other) and all(
        a is b if a is None or b is None else backward_run.is_close(a, b) for a, b in zip(one, other, strict=True)
    )


def _write_verdict(comparison: BackwardComparison, behind: Graph | None, arguments: Mapping[str, int]) -> str:
    legacy, full = comparison.legacy, comparison.full
    if full.error and not legacy.error:
        why = (
            " The hook turns the inputs and the output into views, and the module then changes such a view in place."
            if "modified inplace" in full.error
            else ""
        )
        return f"With the full hook, the module raises an error.{why} With the legacy hook, it runs."
    if legacy.error:
        return (
            "With both hooks, the module raises an error."
            if full.error
            else "With the legacy hook, the module raises an error. With the full hook, it runs."
        )
    if not legacy.called and not full.called:
        return "Neither hook is called."
    if not legacy.called:
        why = "the output has no autograd node of its own" if not legacy.node else "no gradient reaches its node"
        return f"Only the full hook is called. The legacy hook is not, because {why}."
    if not full.called:
        return (
            f"Only the legacy hook is called; it is on {legacy.node}. The full hook is not, because torch finds no "
            "output tensor for it."
        )
    nodes = [node for node in behind.nodes if not node.leaf and node.id not in arguments.values()] if behind else []
    one, other = legacy.grad_input or (), full.grad_input or ()
    if _are_same(one, other):
        if len(nodes) == 1:
            what = "whose inputs are the arguments of the module"
            return f"Both hooks get the same here, because forward made only one node, {legacy.node}, {what}."
        return f"Both hooks get the same here, although the legacy hook is on {legacy.node}, one of {len(nodes)} nodes."
    many = f", one of the {len(nodes)} nodes that forward made," if len(nodes) > 1 else ""
    return (
        f"They differ. The legacy hook is on {legacy.node}{many} and gets the gradients of the inputs of this node: "
        f"{_format_shapes(one)}. The full hook gets one entry for each argument of the module: {_format_shapes(other)}."
    )


def _format_shapes(entries: Sequence[Any]) -> str:
    return ", ".join("None" if entry is None else str(tuple(entry.shape)) for entry in entries) or "none"


def _list_rows(comparison: BackwardComparison) -> list[dict[str, str]]:
    """Return the rows of the comparison for the page, with warnings and errors in full."""
    rows = [{str(key): str(value) for key, value in row.items()} for row in comparison.table().rows]
    views = {"legacy hook": comparison.legacy, "full hook": comparison.full}
    for row in rows:
        for column, view in views.items():
            if row["what"] == "warning":
                row[column] = "\n".join(view.warnings)
            elif row["what"] == "error":
                row[column] = view.error
    return rows


def _list_shapes(kind: ExampleLayer | None, now: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if kind is None:
        return ()
    return kind.shapes if now in kind.shapes else (*kind.shapes, now)


def _explain_fixed(kind: ExampleLayer | None, module: nn.Module) -> str:
    """Say why requires_grad cannot be switched, "" if it can."""
    if kind is None:
        return "these are your own inputs"
    if kind.integer:
        return "integers cannot require grad"
    if not list(module.parameters()):
        return "the layer has no parameters, so its input must require grad"
    return ""
