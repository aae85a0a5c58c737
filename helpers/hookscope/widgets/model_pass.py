"""Run a model once, and capture the outputs of all layers and their gradients for a picker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import RAISED, Call, NotCapturedError
from hookscope.captures.capture import capture
from hookscope.captures.recorder import CaptureTooLargeError
from hookscope.captures.result import Capture
from hookscope.captures.stats import Stats
from hookscope.model_inputs import explain_no_grad
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors, tree_map
from hookscope.widgets.gradient_goal import Goal, find_goal, parts_of, select_goal
from hookscope.wrong_inputs import check_batch_axis, explain_input_errors

__all__ = ["ModelPass"]

_ROUNDING = 1e-5  # gradients below this fraction of the gradient of a random weighted sum are rounding errors


class ModelPass:
    """Runs a model in `eval()` and captures the outputs of all its modules.

    Training flags, buffers and the random state are restored. Parameters and their `.grad` stay the same.

    Args:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        max_bytes: the maximum memory that one pass can keep; None for no limit.
        gradient_of: the value whose gradient is computed, see `select_goal`; None lets `find_goal` choose.
        classes: the number of class names that the user gave; None without names.

    Attributes:
        capture: the capture of the last pass.
        output: the detached output of the last pass.
        goal: the value whose gradient is computed; None if no output can have a gradient.
        warnings: the warnings of the last pass, from the model and from hookscope.

    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        max_bytes: int | None = None,
        gradient_of: str | Callable[[Any], Tensor] | None = None,
        classes: int | None = None,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ValueError(
                "the model is TorchScript, which does not run all Python hooks. Pass the module that it was made from"
            )
        self.model = model
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self.max_bytes = max_bytes
        self._gradient_of, self._classes = gradient_of, classes
        self.output: Any = None
        self.goal: Goal | None = None
        self.warnings: list[str] = []
        self._random_gradients: dict[tuple[str, str], float] | None = None
        self._without_gradients = capture(model, _is_hookable, max_bytes=max_bytes)
        self._with_gradients = self._without_gradients.like(gradients=True)
        self.capture: Capture = self._without_gradients

    def run(self) -> None:
        """Run the model without gradients.

        Raises:
            WrongInputError: the model cannot run on its inputs; the message says why.

        """
        way = "Use hookscope.capture, which runs your own pass"
        with explain_no_grad("LayerPicker", way), self._prepare(), torch.no_grad(), self._without_gradients:
            output = self.model(*self.args, **self.kwargs)
        self.capture = self._without_gradients
        outputs = {name: calls[0].output for name in self._without_gradients if (calls := self.calls_of(name))}
        check_batch_axis(self._without_gradients.modules.names, self.args, outputs)
        self._random_gradients = None
        self.output = tree_map(torch.Tensor.detach, output)
        self.goal = self._find_goal(self.output)

    def calls_of(self, layer: str) -> list[Call]:
        """List the calls of a layer that returned; a model can catch the exception of the others."""
        return [call for call in self.capture[layer].calls if call.returned] if layer in self.capture else []

    def list_raised(self) -> list[str]:
        """Return a sentence for each layer that returned in none of its calls."""
        return [f"Layer {name!r} {RAISED}." for name in self.capture if not self.calls_of(name)]

    def why_missing(self, layer: str) -> str:
        """Explain why `calls_of` is empty."""
        return RAISED if layer in self.capture else self.capture.uncalled.get(layer, "cannot be hooked")

    def run_backward(self, target: int | None) -> None:
        """Run the model forward, then backward from `goal`.

        Args:
            target: the class; None for the highest score of each sample.

        Raises:
            ValueError: the output has no floating-point tensor, or none that requires grad.
            IndexError: the class does not exist.

        """
        if self.goal is None:
            raise ValueError("the model returns no floating-point tensor, so there is no gradient to compute")

        def score(output: Any, given: Any) -> Tensor:
            return self._find_reachable_goal(output, given).score(output, target)

        self.output = self._run_backward(self._with_gradients, score)
        self.capture = self._with_gradients

    def _find_goal(self, output: Any) -> Goal | None:
        if self._gradient_of is not None:
            return select_goal(output, self._gradient_of)
        # Outputs that do not require grad show up only in a pass with gradients, see _find_reachable_goal.
        made = _list_computed(output, (self.args, self.kwargs))
        return find_goal(output, made, self._classes) or find_goal(output, classes=self._classes)

    def _find_reachable_goal(self, output: Any, given: Any) -> Goal:
        """Return the goal. If it does not require grad, choose another one, unless the user fixed it."""
        goal, parts = self.goal, parts_of(output)
        assert goal is not None
        reachable = [part for part in _list_computed(output, given) if parts[part].requires_grad]
        if goal.function is None and goal.part not in reachable:
            if goal.fixed and reachable:
                names = ", ".join(map(repr, reachable))
                raise ValueError(f"gradient_of={goal.part!r} does not require grad. Pass one that does: {names}")
            self.goal = goal = find_goal(output, reachable, self._classes) or goal
        return goal

    def is_rounding(self, label: str, part: str, largest: float) -> bool:
        """Return whether the gradient of a sum is 0 up to rounding.

        After a layer norm or a softmax, the sum is constant, so its gradient is 0. The gradient of a random weighted
        sum of the same values is not. This method compares the two.

        Args:
            label: the call of the layer, as in `Call.label`.
            part: which tensor of its output.
            largest: the largest absolute value of the gradient.

        """
        if self.goal is None or self.goal.classes or not self.goal.shape or self.goal.function is not None:
            return False
        if self._random_gradients is None:
            goal = self.goal
            stats = capture(self.model, _is_hookable, gradients=True, stats=True)
            self._run_backward(stats, lambda output, given: goal.random_score(output))
            self._random_gradients = {
                (call.label, part): max(abs(of.min), abs(of.max))
                for name in stats
                for call in stats[name].calls
                for part, of in parts_of(_get_grad_stats(call), Stats).items()
            }
        otherwise = self._random_gradients.get((label, part), 0.0)
        return otherwise > 0 and largest <= _ROUNDING * otherwise

    def _run_backward(self, recorder: Capture, score_of: Callable[[Any, Any], Tensor]) -> Any:
        """Run the model forward in a capture, then backward from a score of its output; return the output."""
        sources: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            if not (tensor.is_floating_point() or tensor.is_complex()) or not _is_dense(tensor):
                return tensor
            sources.append(tensor.detach().clone().requires_grad_())
            # A model can begin with an in-place operation, which torch forbids on a leaf.
            return sources[-1].view_as(sources[-1]) + 0

        # Inference mode has no gradients. Tensors that were made in it are cloned above.
        with torch.inference_mode(False), self._prepare(), torch.enable_grad(), _restore_grads(self.model), recorder:
            args, kwargs = tree_map(leaf, (self.args, self.kwargs))
            output = self.model(*args, **kwargs)
            score = score_of(output, (args, kwargs))
            sources += [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            if not score.requires_grad:
                raise ValueError("the model's output does not require grad, so there is no gradient to compute")
            # backward() would add to the .grad of the user's parameters.
            torch.autograd.grad(score, sources, allow_unused=True)
        return tree_map(torch.Tensor.detach, output)

    @contextmanager
    def _prepare(self) -> Iterator[None]:
        with (
            preserve_model(self.model),
            preserve_rng_state(self.model, self.args, self.kwargs),
            _explain_memory_error(self.max_bytes),
            explain_input_errors(self.model, self.args, self.kwargs),
            self._collect_warnings(),
        ):
            self.model.eval()
            yield

    @contextmanager
    def _collect_warnings(self) -> Iterator[None]:
        """Store the warnings of the block, so that the widget can show them."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", "hookscope: ")
            yield
        self.warnings = [*dict.fromkeys(str(warning.message) for warning in caught)]


@contextmanager
def _explain_memory_error(max_bytes: int | None) -> Iterator[None]:
    """Replace the message of `capture`, which names options that a picker does not have."""
    try:
        yield
    except CaptureTooLargeError as error:
        raise MemoryError(
            f"the outputs of all layers need more than max_bytes={max_bytes:,}. Pass a smaller batch, smaller inputs "
            "or a part of the model, or raise max_bytes (None for no limit)"
        ) from error


@contextmanager
def _restore_grads(model: nn.Module) -> Iterator[None]:
    """Restore every `.grad`. Some models call backward() themselves, for example in reversible blocks."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in before:
            parameter.grad = grad


def _get_grad_stats(call: Call) -> Any:
    try:
        return call.grad_stats
    except NotCapturedError:  # no gradient reached this call, for example rotary embeddings or another head
        return None


def _list_computed(output: Any, given: Any) -> list[str]:
    """List the parts of an output that the model computed. Inputs that it returns, and views of them, are left out."""
    inputs = find_tensors(given)
    ids, addresses = {id(tensor) for tensor in inputs}, {t.data_ptr() for t in inputs if _is_dense(t)}
    return [
        part
        for part, tensor in parts_of(output).items()
        if id(tensor) not in ids and not (_is_dense(tensor) and tensor.data_ptr() in addresses)
    ]


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is dense. Sparse, nested and quantized tensors cannot become leaves of the graph."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)


def _is_hookable(name: str, module: nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule)
