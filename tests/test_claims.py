"""Every claim of the five documents that the course has taken up, shown by running it on the installed torch."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from hookscope import feature_grid, record, samples
from lessons import build

CLAIMS = build.claims()["claims"]
LESSONS = {path.stem[:2]: path.read_text(encoding="utf-8") for path in build.lesson_files()}
DEMONSTRATIONS: dict[str, Callable[[], None]] = {}


def shows(claim: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Mark the function that demonstrates a claim and its verdict."""

    def mark(function: Callable[[], None]) -> Callable[[], None]:
        assert claim not in DEMONSTRATIONS
        DEMONSTRATIONS[claim] = function
        return function

    return mark


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim(claim: str) -> None:
    DEMONSTRATIONS[claim]()


def test_no_demonstration_without_a_claim() -> None:
    assert set(DEMONSTRATIONS) == set(CLAIMS)


@pytest.mark.parametrize("row", CLAIMS.values(), ids=lambda row: row["id"])
def test_claim_is_complete_and_met_in_its_chapter(row: dict[str, object]) -> None:
    name = str(row["id"])
    assert row["document"] == name.split(".")[0]
    assert row["document"] in build.claims()["documents"]
    assert row["verdict"] in build.VERDICTS
    assert row["test"] == f"tests/test_claims.py::test_claim[{name}]"
    assert ("since" in row) == (row["verdict"] == "outdated"), "an outdated claim says since when, another does not"
    for number, text in LESSONS.items():
        places = [text.count(f"{{{{{what} {name}}}}}") for what in ("claim", "verdict")]
        assert places == ([1, 1] if int(number) == row["chapter"] else [0, 0]), f"chapter {number}: {places}"


class Double(nn.Module):
    """Returns 2 * x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def doubling() -> nn.Linear:
    """A Linear layer with the single weight 2 and no bias: y = 2 x."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    return layer


THREE = torch.tensor([[3.0]])


@shows("D0.1")
def watches_or_steps_in() -> None:
    class Watcher:
        seen: torch.Tensor

        def look(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
            self.seen = output

    watcher, double = Watcher(), Double()
    with double.register_forward_hook(watcher.look):
        assert double(THREE).item() == watcher.seen.item() == 6
    with double.register_forward_hook(lambda module, args, output: output + 1):
        assert double(THREE).item() == 7


@shows("D1.1")
def runs_before_and_after() -> None:
    seen = []
    double = Double()
    with (
        double.register_forward_pre_hook(lambda module, args: seen.append(("before", args[0].item()))),
        double.register_forward_hook(lambda module, args, output: seen.append(("after", output.item()))),
    ):
        double(THREE)
    assert seen == [("before", 3), ("after", 6)]


@shows("D2.1")
def shows_both_ends_of_a_block() -> None:
    ends = {}

    def keep(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ends.update(input=args[0].detach().clone(), output=output.detach().clone())

    net = samples.digit_cnn()
    with net.block2.register_forward_hook(keep):
        net(samples.digit(5))
    for activation in ends.values():
        assert len(feature_grid(activation, channels=16).rows) == 16


@shows("D4.1")
def leaves_the_code_alone() -> None:
    net = samples.digit_cnn()
    before, code = {name: value.clone() for name, value in net.state_dict().items()}, inspect.getsource(type(net))
    with net.block1.register_forward_hook(lambda module, args, output: None):
        net(samples.digit(5))
    assert inspect.getsource(type(net)) == code
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@shows("D0.2")
def forward_skips_hooks() -> None:
    seen = []
    double = Double()
    double.register_forward_hook(lambda module, args, output: seen.append(1))
    double.forward(THREE)
    assert seen == []
    double(THREE)
    assert seen == [1]


@shows("D0.3")
def inside_call_around_forward() -> None:
    seen = []

    class Speaking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append("forward")
            return x

    speaking = Speaking()
    speaking.register_forward_pre_hook(lambda module, args: seen.append("pre-hook"))
    speaking.register_forward_hook(lambda module, args, output: seen.append("forward hook"))
    speaking.__call__(THREE)
    assert seen == ["pre-hook", "forward", "forward hook"]


@shows("D0.11")
def remove_comes_too_late_for_a_built_graph() -> None:
    seen = []
    double = Double()
    handle = double.register_forward_hook(lambda module, args, output: seen.append("forward"))
    handle.remove()
    double(THREE)
    assert seen == []

    linear, x = doubling(), THREE.clone().requires_grad_()
    handle = linear.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append("backward"))
    y = linear(x)
    handle.remove()
    y.sum().backward()
    assert seen == ["backward"]
    linear(x).sum().backward()
    assert seen == ["backward"], "a graph built after the removal has no hook in it"


@shows("D1.2")
def parameters_are_checked_at_the_call() -> None:
    double = Double()
    double.register_forward_hook(lambda: None)
    with pytest.raises(TypeError, match="takes 0 positional arguments but 3 were given"):
        double(THREE)


@shows("D4.3")
def there_are_more_than_three() -> None:
    kinds = {name for name in dir(nn.Module) + dir(torch.Tensor) if re.fullmatch(r"register_.*hook", name)}
    assert {
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_post_accumulate_grad_hook",
    } <= kinds
    assert len(kinds) > 3


@shows("D4.5")
def stored_under_the_id() -> None:
    double = Double()

    def hook(module: nn.Module, args: object, output: object) -> None:
        pass

    handle = double.register_forward_hook(hook)
    assert type(double._forward_hooks) is OrderedDict
    assert list(double._forward_hooks.items()) == [(handle.id, hook)]
    # More than the document's loop: what a hook returns is used.
    double.register_forward_hook(lambda module, args, output: output + 1)
    assert double(THREE).item() == 7


@shows("D4.7")
def variable_is_tensor() -> None:
    from torch.autograd import Variable

    assert type(Variable(torch.FloatTensor([3]), requires_grad=True)) is torch.Tensor
    assert not hasattr(torch.functional, "relu")
    assert hasattr(nn.functional, "relu")


@shows("D0.4")
def called_by_the_engine() -> None:
    linear, x = doubling(), THREE.clone().requires_grad_()
    seen = []
    linear.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append("module"))
    y = linear(x)
    y.register_hook(lambda grad: seen.append("tensor"))
    assert seen == []
    y.sum().backward()
    assert seen == ["tensor", "module"]


@shows("D0.5")
def order_of_registration_with_two_exceptions() -> None:
    double, seen = Double(), []

    def hook(name: str) -> Callable[..., None]:
        return lambda module, args, output: seen.append(name)

    double.register_forward_hook(hook("first"))
    double.register_forward_hook(hook("second"))
    double.register_forward_hook(hook("prepended"), prepend=True)
    with register_module_forward_hook(hook("global")):
        double(THREE)
    assert seen == ["global", "prepended", "first", "second"]


@shows("D0.10")
def around_a_linear_layer() -> None:
    linear, x = doubling(), THREE.clone().requires_grad_()
    with record(linear) as recording:
        y = linear(x)
        recording.watch(y, "y")
        y.sum().backward()
    kinds = [event.kind for event in recording.events if event.kind != "full_backward_pre"]
    assert kinds == ["forward_pre", "forward", "tensor", "full_backward"]

    seen: list[object] = []
    plain = doubling()
    plain.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain(THREE).sum().backward()
    assert seen == [(None,)]
    assert any("no inputs require gradients" in str(warning.message) for warning in caught)


@shows("D0.13")
def what_each_return_value_does() -> None:
    """The document's table says that a forward hook's return value is ignored; it replaces the output."""

    def values(register: Callable[[nn.Linear, torch.Tensor], object]) -> tuple[float, float, float]:
        linear, x = doubling(), THREE.clone().requires_grad_()
        y = register(linear, x)
        if y is None:
            y = linear(x)
        y.sum().backward()
        return y.item(), x.grad.item(), linear.weight.grad.item()

    def tensor_hook(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        y.register_hook(lambda grad: 10 * grad)
        return y

    def on(method: str, hook: Callable[..., object]) -> Callable[[nn.Linear, torch.Tensor], None]:
        def register(linear: nn.Linear, x: torch.Tensor) -> None:
            getattr(linear, method)(hook)

        return register

    assert values(lambda linear, x: None) == (6, 2, 3)
    assert values(on("register_forward_pre_hook", lambda m, args: (10 * args[0],))) == (60, 20, 30)
    assert values(on("register_forward_hook", lambda m, args, output: 10 * output)) == (60, 20, 30)
    assert values(on("register_full_backward_pre_hook", lambda m, go: (10 * go[0],))) == (6, 20, 30)
    assert values(on("register_full_backward_hook", lambda m, gi, go: (10 * gi[0],))) == (6, 20, 3)
    assert values(tensor_hook) == (6, 20, 30)
