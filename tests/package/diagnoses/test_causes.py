"""Each cause that `diagnose` can find has a model that has it, and a pass leaves nothing behind."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.diagnoses import CAUSES
from tests.package.diagnoses.test_unseen_models import CASES, watch, watch_backward
from tests.shared.awkward_models import Net

X = torch.ones(2, 4)


def net(run: Callable[..., Any] | None = None, layer: nn.Module | None = None) -> Any:
    """A model with one layer called `layer` and one called `head`."""

    def call(self: Any, x: Tensor) -> Any:
        return self.head(self.layer(x))

    return Net(run or call, layer=layer or nn.Linear(4, 4), head=nn.Linear(4, 2))


def hooked(model: Any, hook: Callable[..., Any] = watch, method: str = "register_forward_hook") -> Any:
    """Register a hook on the layer."""
    with warnings.catch_warnings(action="ignore"):
        getattr(model.layer, method)(hook)
    return model


class OwnCall(nn.Linear):
    """A layer whose class defines __call__."""

    def __call__(self, x: Tensor) -> Tensor:
        """Skip the hooks."""
        return self.forward(x)


def wrong_arity(module: nn.Module, output: Tensor) -> None:
    """A hook with an argument too few."""


def write(module: nn.Module, args: Any, output: Tensor) -> None:
    """A hook that writes into the output."""
    output.mul_(2)


def run_children(self: Any, x: Tensor) -> Tensor:
    """Call the modules of a Sequential, but not the Sequential."""
    for step in self.layer:
        x = step(x)
    return x


def shared_name() -> Any:
    """The loop of chapter 11 in which all hooks read one variable."""
    model, seen = net(), {}
    for name, layer in model.named_children():

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            seen[name] = output.detach().clone()  # noqa: B023 (this is the mistake)

        layer.register_forward_hook(keep)
    return model


def tied() -> Any:
    """A layer that is not called, and shares its weight with one that is."""
    model = hooked(net(lambda self, x: self.head(x)))
    model.layer.weight = model.head.weight
    return model


def keeping() -> Any:
    """A hook that keeps the output with its graph."""
    kept: list[Tensor] = []
    return hooked(net(), lambda module, args, output: kept.append(output))


def again() -> Any:
    """A cell that was run three times."""
    model = net()
    for _ in range(3):
        hooked(model)
    return model


def by_keyword(hook: Callable[..., Any]) -> Any:
    """A model that calls its layer with a keyword."""
    model = net(lambda self, x: self.head(self.layer(input=x)))
    return hooked(model, hook, "register_forward_pre_hook")


class Kept(list[Tensor]):
    """A list with a method that is a hook."""

    def keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Store the output."""
        self.append(output.detach())


ORIGINALS: list[Any] = []  # as in a notebook, where the model that was copied is still there


def copied() -> Any:
    """A deep copy of a model whose hook is a method."""
    kept = Kept()
    ORIGINALS.append((hooked(net(), kept.keep), kept))
    return copy.deepcopy(ORIGINALS[-1][0])


def checkpointed(self: Any, x: Tensor) -> Tensor:
    """Run the layer in a checkpoint."""
    return self.head(checkpoint(self.layer, x.requires_grad_(), use_reentrant=False))  # type: ignore[no-any-return]


def reentrant(self: Any, x: Tensor) -> Tensor:
    """Run the layer in a checkpoint of the old kind."""
    return checkpoint(self.layer, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]


def raises(self: Any, x: Tensor) -> Tensor:
    """Pass a wrong shape to the head."""
    return self.head(self.layer(x)[:, :3])  # type: ignore[no-any-return]


BACKWARD = "register_full_backward_hook"
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "an argument too few": ("hook_raised", lambda: hooked(net(), wrong_arity)),
    "the head raises": ("raised", lambda: hooked(net(raises))),
    "a class with a __call__": ("forward_called", lambda: hooked(net(layer=OwnCall(4, 4)))),
    "a loop over a Sequential": (
        "children_called", lambda: hooked(net(run_children, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))),
    ),
    "F.linear": ("weight_used", lambda: hooked(net(lambda self, x: F.linear(x, self.layer.weight)))),
    "a ModuleList": ("never_called", lambda: hooked(net(run_children, nn.ModuleList([nn.Linear(4, 4)])))),
    "a ParameterList": (
        "never_called", lambda: hooked(net(lambda self, x: x * self.layer[0], nn.ParameterList([torch.ones(4)]))),
    ),
    "a weight that another layer uses": ("not_reached", tied),
    "no hook": ("no_hook", net),
    "a hook for state_dict()": (
        "no_hook", lambda: hooked(net(), lambda *_: None, "register_state_dict_pre_hook"),
    ),
    "the result is not used": (
        "detached", lambda: hooked(net(lambda self, x: (self.layer(x), self.head(x))[1]), watch_backward, BACKWARD),
    ),
    "argmax": (
        "detached", lambda: hooked(net(lambda self, x: self.head(self.layer(x)).argmax(-1)), watch_backward, BACKWARD),
    ),
    "a legacy hook": ("legacy", lambda: hooked(net(), watch_backward, "register_backward_hook")),
    "a pre-hook that returns": (
        "replaced", lambda: hooked(net(), lambda module, args: (args[0] + 1,), "register_forward_pre_hook"),
    ),
    "a hook that writes": ("wrote", lambda: hooked(net(), write)),
    "a hook that keeps the graph": ("keeps_graph", keeping),
    "a loop variable": ("late_name", shared_name),
    "a cell that ran three times": ("registered_again", again),
    "a reentrant checkpoint": ("checkpoint", lambda: hooked(net(reentrant))),
    "no input requires grad": ("no_grad_input", lambda: hooked(net(), watch_backward, BACKWARD)),
    "a pre-hook": ("fires", lambda: hooked(net(), lambda module, args: None, "register_forward_pre_hook")),
    "nothing is wrong": ("fires", lambda: hooked(net())),
    "a pre-hook of a layer with keywords": ("keyword_inputs", lambda: by_keyword(lambda module, args: None)),
    "a pre-hook that takes args[0] of a layer with keywords": (
        "keyword_inputs", lambda: by_keyword(lambda module, args: print(args[0])),
    ),
    "a deep copy of a model with a hook that is a method": ("copied", copied),
    "a full backward hook of a layer with keywords": (
        "fires", lambda: hooked(net(lambda self, x: self.head(self.layer(input=x))), watch_backward, BACKWARD),
    ),
    "a full backward hook in a checkpoint": ("fires", lambda: hooked(net(checkpointed), watch_backward, BACKWARD)),
    "a backward hook that returns": (
        "replaced", lambda: hooked(net(reentrant), lambda module, args, grads: (grads[0] * 2,), BACKWARD),
    ),
}  # fmt: skip
ELSEWHERE = {"no_grad", "pre_hook", "silent"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_the_cause_is_first_and_its_line_is_python(name: str) -> None:
    cause, make = MODELS[name]
    found = hookscope.diagnose(make(), "layer", X)
    assert found.cause == cause, found
    for finding in found.findings:
        line = finding.write
        compile(f"{line}\n    pass" if line.endswith(":") else line, "", "exec")


def test_a_write_of_the_hook_is_not_one_of_a_later_step() -> None:
    found = hookscope.diagnose(hooked(net(), write), "layer", X)
    assert [finding.cause for finding in found.findings] == ["wrote", "fires"]


def test_each_cause_has_a_model() -> None:
    assert {*CAUSES} == {*CASES.values(), *(cause for cause, _ in MODELS.values()), *ELSEWHERE}


def test_no_grad_around_the_call() -> None:
    with torch.no_grad():
        found = hookscope.diagnose(hooked(net(), watch_backward, BACKWARD), "layer", X)
    assert found.cause == "no_grad"
    assert "where you call diagnose" in found.findings[0].evidence


def test_a_pre_hook_that_fires_is_said_to_get_the_input() -> None:
    found = hookscope.diagnose(hooked(net(), lambda module, args: None, "register_forward_pre_hook"), "layer", X)
    assert [finding.cause for finding in found.findings] == ["fires", "pre_hook"]


def test_the_line_for_a_hook_that_raises() -> None:
    arity = hookscope.diagnose(hooked(net(), wrong_arity), "layer", X).findings[0]
    assert (arity.cause, arity.write) == ("hook_raised", "def hook(module, args, output):")
    inside = hookscope.diagnose(hooked(net(), lambda module, args, output: output.missing), "layer", X).findings[0]
    assert (inside.cause, inside.write) == ("hook_raised", "")
    line = net.__code__.co_filename.rpartition("/")[2]
    assert f"{line}:" in inside.evidence
    assert "AttributeError: 'Tensor' object has no attribute 'missing'" in inside.evidence


def test_the_hook_is_on_the_original_of_a_deep_copy() -> None:
    original = net()
    twin = copy.deepcopy(original)
    hooked(original)
    (found,) = hookscope.diagnose(twin, "layer", X).findings
    assert found.cause == "no_hook"
    assert "is the model a copy?" in found.evidence
    (stranger,) = hookscope.diagnose(twin, original.layer, X).findings
    assert stranger.cause == "not_in_model"
    assert stranger.write == "handle = model.layer.register_forward_hook(hook)"


def test_lazy_layers_that_are_not_called_are_not_compared() -> None:
    others = [net(lambda self, x: self.head(x), nn.LazyLinear(4)) for _ in range(2)]
    assert hookscope.diagnose(others[0], "layer", X).cause == "not_reached"
    assert hookscope.diagnose(others[0], others[1].layer, X).cause == "not_in_model"


def test_the_original_of_a_deep_copy_is_not_the_copy() -> None:
    kept = Kept()
    original = hooked(net(), kept.keep)
    twin = copy.deepcopy(original)
    assert hookscope.diagnose(original, "layer", X).cause == "fires"
    assert hookscope.diagnose(twin, "layer", X).cause == "copied"
    assert len(kept) == 1


def test_a_function_on_a_deep_copy_is_not_copied() -> None:
    original = hooked(net())
    assert hookscope.diagnose(copy.deepcopy(original), "layer", X).cause == "fires"
    assert original is not None


@contextmanager
def unchanged(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Compare all that a pass can change, before and after the block."""

    def state() -> list[Any]:
        modules = [
            (module.training, dict(module._forward_hooks), dict(module._backward_hooks), sorted(vars(module)))
            for module in model.modules()
        ]
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters()), x, x.grad]
        copies = [None if each is None else each.detach().clone() for each in tensors]
        return [modules, torch.get_rng_state(), *copies]

    before = state()
    yield
    for one, other in zip(before, state(), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.parametrize("way", ["called", "forward", "raises"])
def test_the_model_is_as_before(way: str) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        hidden = F.dropout(self.norm(x.add_(1) if not x.requires_grad else x), training=True)
        hidden = self.layer.forward(hidden) if way == "forward" else self.layer(hidden)
        if way == "raises":
            raise RuntimeError("no")
        return hidden  # type: ignore[no-any-return]

    model = Net(run, norm=nn.BatchNorm1d(4), layer=nn.Linear(4, 4))
    model.calls = 0  # type: ignore[assignment]
    model.layer.register_full_backward_hook(watch_backward)  # type: ignore[union-attr, operator]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for x in (torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)):
        with unchanged(model, x):
            found = hookscope.diagnose(model, "layer", x)
    assert found.cause == {"called": "fires", "forward": "forward_called", "raises": "raised"}[way]


def test_an_optimizer_in_the_backward_pass_does_not_step() -> None:
    model = hooked(net(), watch_backward, BACKWARD)

    def step(weight: Tensor) -> None:
        weight.data.sub_(1)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with unchanged(model, X):
        assert hookscope.diagnose(model, "layer", X.clone().requires_grad_()).cause == "fires"


def test_prints_of_a_hook_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = hookscope.diagnose(hooked(net(), lambda module, args, output: print("seen")), "layer", X)
    assert found.cause == "fires"
    assert not capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_refused() -> None:
    with pytest.raises(hookscope.LayerNotFoundError, match="did you mean 'layer'"):
        hookscope.diagnose(net(), "layr", X)
    with pytest.raises(ValueError, match=r"matches 2 layers. Pass one of them, such as 'layer'"):
        hookscope.diagnose(net(), "*", X)
    with pytest.raises(ValueError, match=r"DataParallel runs the model on several devices.*model.module"):
        hookscope.diagnose(nn.DataParallel(net()), "module.layer", X)
    scripted = net(layer=torch.jit.trace(nn.Linear(4, 4), X))  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="Linear is TorchScript, which runs only some hooks"):
        hookscope.diagnose(scripted, "layer", X)
    with pytest.raises(TypeError, match=r"layer is of type int\. Pass the name of one layer"):
        hookscope.diagnose(net(), 0, X)  # type: ignore[arg-type]


def test_a_graph_of_the_user_still_runs_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    loss = model(torch.randn(5, 3)).sum()
    mean = model[1].running_mean
    hookscope.diagnose(model, "0", torch.randn(5, 3))
    assert model[1].running_mean is mean
    loss.backward()


def test_a_hook_on_a_parameter_alone_is_said_not_to_be_watched() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.register_hook(lambda grad: None)
    found = hookscope.diagnose(nn.Sequential(layer), "0", torch.ones(1, 3))
    assert found.cause in ("silent", "no_hook")
    assert found.findings[0].evidence


def test_an_exception_is_no_sign_of_a_kept_graph() -> None:
    def divide(module: nn.Module, args: object, output: object) -> None:
        1 / 0  # noqa: B018

    layer = nn.Linear(3, 2)
    layer.register_forward_hook(divide)
    causes = [each.cause for each in hookscope.diagnose(nn.Sequential(layer), "0", torch.ones(1, 3)).findings]
    assert causes[0] == "hook_raised"
    assert "keeps_graph" not in causes
