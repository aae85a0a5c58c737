"""One awkward edit, what judges it, and the models and runs that several of them share."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import edit
from hookscope.interp.edits import Edit
from tests.shared.awkward_models import Net, tensors_in

Run = Callable[[nn.Module], Any]


@dataclasses.dataclass
class EditCase:
    """One awkward edit.

    Attributes:
        make: makes the model, the same one each time.
        run: runs the passes and gives tensors in any structure.
        layer: which layer is edited.
        whole: what is made of the whole tensor; may write to it, as people do.
        ours: the same edit, asked of hookscope.
        truth: computes what has to come out, from a model of its own; None if only an error is right.
        to, part, calls: which tensor, of which calls.
        may_refuse: whether an error is right, too.

    """

    make: Callable[[], nn.Module]
    run: Run
    layer: str
    whole: Callable[[Tensor], Any]
    ours: Callable[[Edit], None]
    truth: Run | None
    to: str = "output"
    part: Any = None
    calls: frozenset[int] | None = None
    may_refuse: bool = False

    def made(self) -> nn.Module:
        """Make the model from the same random numbers."""
        torch.manual_seed(0)
        return self.make()

    def wanted(self) -> list[Tensor] | None:
        """Compute what has to come out."""
        return None if self.truth is None else _tensors(self.truth(self.made()))

    def judge(self, edited: Callable[[nn.Module], Any], atol: float = 1e-5) -> tuple[str, str]:
        """Return right, refused, not applied, wrong, raises or left behind, and what was said.

        Args:
            edited: edits a model and runs it.
            atol: how far from right is right; 10 times as much of large values.

        """
        model = self.made()
        before = state_of(model)
        found: list[Tensor] | None = None
        said = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = _tensors(edited(model))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        left = state_of(model) != before
        if found is None:
            refused = self.truth is None or self.may_refuse
            return ("left behind" if left else "refused" if refused else "raises"), said
        if left:
            return "left behind", "hooks, flags or a replaced forward stay on the model"
        wanted = self.wanted()
        if wanted is not None and _same(found, wanted, atol):
            return "right", ""
        plain = self.made()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                untouched = _tensors(self.run(plain))
            except Exception:
                untouched = []
        return ("not applied" if untouched and _same(found, untouched, atol) else "wrong"), ""

    def edited(self, model: nn.Module) -> Any:
        """Edit with hookscope."""
        with edit(model) as e:
            self.ours(e)
            return self.run(model)


def state_of(model: nn.Module) -> list[Any]:
    """What a tool may not leave anything in: hooks, flags, forwards, submodules, what parameters require."""
    kept = []
    for name, module in model.named_modules():
        own = {
            key: [(kid, id(hook)) for kid, hook in value.items()] if "hooks" in key and isinstance(value, dict) else ""
            for key, value in vars(module).items()
        }
        kept.append((name, type(module), sorted(own.items(), key=lambda item: item[0]), module.training))
    return [kept, [(name, p.requires_grad) for name, p in model.named_parameters()]]


def _tensors(value: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(value)]


def _same(mine: list[Tensor], theirs: list[Tensor], atol: float) -> bool:
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=10 * atol, atol=atol)
        for a, b in zip(mine, theirs, strict=True)
    )


X = torch.linspace(-2, 2, 12).reshape(3, 4)
V = torch.linspace(-1, 1, 16)


def _by_hook(layer: str, new: Callable[[Tensor], Tensor]) -> Run:
    """Make a truth of the layer's forward, replaced by itself and then `new`: no hook in it."""

    def truth(case_run: Run, model: nn.Module) -> Any:
        module = model.get_submodule(layer)
        forward = module.forward
        module.forward = lambda *args, **kwargs: new(forward(*args, **kwargs))
        return case_run(model)

    return truth  # type: ignore[return-value]


CASES: dict[str, EditCase] = {}
"""All of them, by name, in the order in which they were entered."""


def case(name: str, make: Any, run: Run, layer: str, whole: Any, ours: Any, truth: Any, **more: Any) -> None:
    """Enter an edit; the truth "layer" is the layer's forward with `whole` behind it."""
    if truth == "layer":
        replaced = _by_hook(layer, lambda t: whole(t.clone()))
        truth = lambda model: replaced(run, model)  # type: ignore[call-arg] # noqa: E731
    CASES[name] = EditCase(make, run, layer, whole, ours, truth, **more)


def quiet(run: Run) -> Run:
    """Run without gradients."""

    def quietly(model: nn.Module) -> Any:
        with torch.no_grad():
            return run(model)

    return quietly


def set_(index: Any, value: float = 0.0) -> Callable[[Tensor], Tensor]:
    """Write in place, as people do in their functions."""

    def write(tensor: Tensor) -> Tensor:
        tensor[index] = value
        return tensor

    return write


on_x = quiet(lambda model: model(X))


def two_linear() -> nn.Module:
    """Two layers, to go backward through."""
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def thrice() -> nn.Module:
    """A layer that is called three times."""
    return Net(lambda self, x: self.act(self.act(self.act(x) + 1) + 1), act=nn.Tanh())
