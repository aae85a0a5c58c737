"""Compare what a legacy and a full backward hook get on a layer, and see why."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import nn

from hookscope.comparisons import backward_run
from hookscope.comparisons.compare import BackwardComparison, compare_backward_hooks
from hookscope.graphs import drawing
from hookscope.graphs.graph import Graph, graph
from hookscope.pictures.picture import Rows
from hookscope.preserve import preserve_rng_state
from hookscope.widgets.base import HookWidget, assets
from hookscope_course.widgets.boxes import Arrow, TextBox, lay_out, to_png
from hookscope_course.widgets.example_layers import LAYERS, ExampleLayer

__all__ = ["GradInputExplorer"]

FOLDER = Path(__file__).parent


_FOLDED, _SHOWN = 8, 12  # with more nodes than the first, leaves are folded; the second is the limit of boxes
_LETTERS = 26  # letters in a line of a box
_CLONED = " The input is a clone, because torch does not allow an in-place operation on a leaf that requires grad."
_CHOICES = ("layer", "bias", "inplace", "input_shape", "requires_grad")


class GradInputExplorer(HookWidget):
    """Compare what `register_backward_hook` (legacy) and `register_full_backward_hook` get on a layer.

    Each choice calls `hookscope.compare_backward_hooks`. The graph shows the autograd node of the legacy hook, and the
    gradients that the full hook gets. If you choose another layer, the other choices are reset.

    Args:
        module: your own module, instead of a layer by name. The widget runs copies of it.
        *inputs: positional arguments of your module.
        kwargs: keyword arguments of your module.
        **chosen: attributes to start with: `layer` (such as "Conv2d" or "x + y + z"), `bias`, `inplace`,
            `input_shape` and `requires_grad`. `comparison` and `verdict` are the results.

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
    shown = traitlets.Dict().tag(sync=True)  # everything that the page draws

    _esm, _css = assets(FOLDER / "boxes", FOLDER / "grad_input")

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
    def verdict(self) -> str:
        """The difference between both hooks, in a sentence or two."""
        return self._compare().verdict

    def numbers(self) -> Rows:
        """List what each hook got, one row per fact."""
        return self.comparison.table().rows

    def summary(self) -> str:
        """Describe the layer and the difference between the hooks."""
        shape = f" {self.input_shape}" if self.layer in LAYERS else ""
        return f"GradInputExplorer {self.layer}{shape}: {self.verdict}\n{self.comparison.explanation}"

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
            self.alt, self.png = look.alt, to_png(look.drawing)
            self.shown = {
                "layers": [*([self._own_name] if self._own_name else []), *LAYERS],
                "own": kind is None,
                "shapes": [list(shape) for shape in _list_shapes(kind, self.input_shape)],
                "options": list(kind.options) if kind else [],
                "fixed": _explain_fixed(kind, look.module),
                "rows": _list_rows(look.comparison),
                "title": type(look.module).__name__,
                "verdict": look.verdict,
                "explanation": look.comparison.explanation,
                "drawing": look.drawing,
                "aside": look.aside + _CLONED * bool(kind and self.inplace and self.requires_grad),
            }


class _HookComparison:
    """One comparison, its graph, and its text."""

    def __init__(self, module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.module = module
        self.comparison = compare_backward_hooks(module, *inputs, kwargs=kwargs)
        self.graph, self.arguments = _trace_graph(module, tuple(inputs), dict(kwargs))
        self.verdict = _write_verdict(self.comparison, self.graph, self.arguments)
        self.drawing, self.aside = _draw(self.graph, self.arguments, self.comparison)
        node = self.comparison.legacy.node
        where = f"The legacy hook is on {node}" if node else "There is no node for the legacy hook"
        size = f"Graph of {len(self.graph.nodes)} autograd nodes" if self.graph else "No graph"
        self.alt = f"{size} behind the output of {type(module).__name__}. {where}. {self.verdict}"


def _trace_graph(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph | None, list[str]]:
    """Run a copy without hooks; return the graph of the tensor that a legacy hook uses, and the argument names."""
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
            return None, names
        kept = {name: value for name, value in named.items() if name in before and value.grad_fn is before[name]}
        return graph(output, names=kept, model=module), names


def _write_verdict(comparison: BackwardComparison, behind: Graph | None, arguments: Sequence[str]) -> str:
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
    nodes = [node for node in behind.nodes if not node.leaf and node.label not in arguments] if behind else []
    one, other = legacy.grad_input or (), full.grad_input or ()
    if len(one) == len(other) and all(
        a is b if a is None or b is None else backward_run.is_close(a, b) for a, b in zip(one, other, strict=True)
    ):
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


def _draw(graph: Graph | None, arguments: Sequence[str], comparison: BackwardComparison) -> tuple[dict[str, Any], str]:
    """Draw the graph with the place of each hook, and return a sentence about it."""
    legacy, full = comparison.legacy, comparison.full
    if graph is None:
        text = "no graph: the first output does not require grad"
        return lay_out({0: TextBox(((text, "quiet"),))}, {}, 0), ""
    boxes = {node.id: drawing.make_box(node) for node in graph.nodes}
    arrows: drawing.Arrows = {}
    for edge in graph.edges:
        arrows[edge.source, edge.target] = (*arrows.get((edge.source, edge.target), ()), edge.index)
    # Keep the arguments when leaves are folded.
    at = {index: node.id for index, name in enumerate(arguments) for node in graph.nodes if node.label == name}
    for place in at.values():
        boxes[place] = replace(boxes[place], fixed=True)
    if len(boxes) > _FOLDED:
        boxes, arrows = drawing.fold_leaves(boxes, arrows, {node.id: node.inputs for node in graph.nodes})
    near = [0]
    for place in near:
        near += [target for source, target in arrows if source == place and target not in near]
    users = {source for source, _ in arrows}
    ends = [place for place in near[_SHOWN:] if place in at.values() and place not in users]
    kept = near[:_SHOWN] + ends
    left = [place for place in near if place not in kept]
    blocks = {}
    for place in kept:
        box = boxes[place]
        lines = [(drawing.shorten_line(drawing.escape(box.title)), "title")]
        for text in box.details:
            lines += [(part, "quiet") for part in textwrap.wrap(drawing.escape(text), _LETTERS, max_lines=3)]
        on = place == 0 and bool(legacy.node)
        if on:
            lines.append(("the legacy hook is here", "hook"))
        indices = [index for index, where in at.items() if where == place]
        if full.called:
            lines += [(f"full hook: grad_input[{index}]", "grad") for index in indices]
        blocks[place] = TextBox(tuple(lines), round=box.leaf, lit=on or bool(indices))
    drawn = {
        (source, target): Arrow(_format_entries(indices) if source == 0 and legacy.called else "")
        for (source, target), indices in arrows.items()
        if source in kept and target in kept
    }
    if left:
        blocks[-1] = TextBox(((f"{len(left)} more nodes", "quiet"),))
        drawn |= {(source, -1): Arrow() for source, target in arrows if source in kept and target in left}
        drawn |= {(-1, target): Arrow() for source, target in arrows if source in left and target in ends}
    missing = [name for index, name in enumerate(arguments[: len(full.grad_input or ())]) if index not in at]
    none = f" {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in this graph." if missing else ""
    words = "The arrows show the flow of the gradients."
    entries = " The legacy hook gets those that leave the top node as grad_input." if legacy.called else ""
    return lay_out(blocks, drawn, 0), f"{words}{entries}{none}"


def _format_entries(indices: Sequence[int]) -> str:
    return ", ".join(f"grad_input[{index}]" for index in indices)


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
