"""Every claim of the five documents that the course has taken up, shown by running it on the installed torch."""

from __future__ import annotations

import copy
import gc
import inspect
import re
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import DataLoader, TensorDataset

from hookscope import feature_grid, find_layers, record, samples
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
    before, forward = {name: value.clone() for name, value in net.state_dict().items()}, net.block1.forward
    with net.block1.register_forward_hook(lambda module, args, output: None):
        net(samples.digit(5))
        assert net.block1.forward == forward  # of the same object, by the same function
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


@shows("D0.6")
@shows("D3.11")
def what_a_forward_hook_returns_replaces_the_output() -> None:
    """For the next hook and for the caller; None leaves it. (torch 1.0 and 1.1 raised; since 1.2, as recorded.)"""
    double, seen = Double(), []
    double.register_forward_hook(lambda module, args, output: seen.append(output))
    assert double(THREE).item() == 6
    double.register_forward_hook(lambda module, args, output: output + 1)
    double.register_forward_hook(lambda module, args, output: 10 * output)
    assert double(THREE).item() == 70
    assert seen[-1].item() == 6, "a hook before it still sees the old output"
    double.register_forward_hook(lambda module, args, output: "seventy")
    assert double(THREE) == "seventy", "its type is not looked at"
    doc = inspect.getdoc(nn.Module.register_forward_hook) or ""
    assert "hook(module, args, output) -> None or modified output" in doc


@shows("D4.4")
def the_source_uses_the_result() -> None:
    source = inspect.getsource(nn.Module._call_impl)
    assert re.search(r"hook\(self, args, result\)\s+if hook_result is not None:\s+result = hook_result\n", source)

    def wipe(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        args[0].zero_()

    double, mine = Double(), THREE.clone()
    double.register_forward_hook(wipe)
    assert double(mine).item() == 6, "forward has read the input already"
    assert mine.item() == 0


@shows("D1.4")
def in_place_needs_three_parameters() -> None:
    class Add(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    def two(module: nn.Module, output: torch.Tensor) -> None:
        output += 5

    def three(module: nn.Module, args: object, output: torch.Tensor) -> None:
        output += 5

    add = Add()
    with add.register_forward_hook(two), pytest.raises(TypeError, match="takes 2 positional arguments but 3 were"):
        add(THREE, THREE)
    with add.register_forward_hook(three):
        assert add(THREE, THREE).item() == 11
    # The price: a module may return its own input, and backward may need the output as it was.
    mine, identity, relu = THREE.clone(), nn.Identity(), nn.ReLU()
    identity.register_forward_hook(three)
    identity(mine)
    assert mine.item() == 8
    relu.register_forward_hook(three)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        relu(THREE.clone().requires_grad_()).sum().backward()


@shows("D2.2")
def output_0_is_the_first_sample() -> None:
    given = {}

    def look(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        given.update(input=args[0].shape, output=output[0].shape, whole=output.shape)

    net = samples.digit_cnn()
    with net.block2.register_forward_hook(look):
        net(torch.cat([samples.digit(5), samples.digit(3)]))
    assert len(given["input"]) == 4
    assert given["input"][0] == 2
    assert given["output"] == given["whole"][1:]


@shows("D4.6")
def a_loop_walks_along_the_first_axis() -> None:
    turns = []
    double = Double()
    double.register_forward_hook(lambda module, args, output: turns.append(len(list(output))))
    double(torch.ones(1))
    double(torch.ones(4, 2))
    assert turns == [1, 4], "one output each time"

    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x - 1, x + 1

    around = Around()
    around.register_forward_hook(lambda module, args, output: turns.append(len(list(output))))
    around(torch.ones(3))
    assert turns[-1] == 2, "of a tuple it does take the outputs"


@shows("D0.12")
def a_bound_method_brings_its_object_along() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.seen: list[float] = []

        def look(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
            self.seen.append(output.item())

    watcher, double = Watcher(), Double()
    handle = double.register_forward_hook(watcher.look)
    twin = copy.deepcopy(double)
    twin(THREE)
    assert watcher.seen == [], "the twin's hook has a copy of the object"
    (hook,) = twin._forward_hooks.values()
    assert hook.__self__.seen == [6]

    alive = weakref.ref(watcher)
    del watcher
    gc.collect()
    assert alive() is not None, "the module holds the hook, and the hook holds its object"
    handle.remove()
    gc.collect()
    assert alive() is None


LAST: float | None = None


@shows("D2.9")
def a_global_has_room_for_one_call() -> None:
    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        global LAST
        LAST = output.item()

    double = Double()
    double.register_forward_hook(keep)
    double(THREE)
    assert LAST == 6
    double(double(THREE))
    assert LAST == 12, "of two calls, one is left"


@shows("D0.7")
def pre_hook_replaces_the_input() -> None:
    """None leaves the args; a tuple is the new args; anything else, a list too, is wrapped as one argument."""

    def with_hook(hook: Callable[..., object]) -> tuple[object, tuple[object, ...]]:
        got: list[tuple[object, ...]] = []
        double = Double()
        double.register_forward_pre_hook(hook)
        double.register_forward_pre_hook(lambda module, args: got.append(args))
        return double(THREE), got[0]

    assert with_hook(lambda module, args: None)[0] == 6
    assert with_hook(lambda module, args: args)[0] == 6
    assert with_hook(lambda module, args: (10 * args[0],)) == (60, (30,))
    assert with_hook(lambda module, args: 10 * args[0]) == (60, (30,))
    assert with_hook(lambda module, args: [10 * args[0]]) == ([30, 30], ([30],))
    # Arguments by keyword are neither in args nor replaced, unless the hook asks for them.
    double = Double()
    with double.register_forward_pre_hook(lambda module, args: None if args == () else (10 * args[0],)):
        assert double(x=THREE) == 6
    with double.register_forward_pre_hook(lambda module, args, kwargs: (args, {"x": 10 * THREE}), with_kwargs=True):
        assert double(x=THREE) == 60


@shows("D2.3")
def enumerate_throws_the_random_numbers_away() -> None:
    drawn = torch.randint(0, 32, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    shown = [place for place, _ in enumerate(drawn)]
    assert shown == list(range(16)) != drawn
    with pytest.raises(IndexError):
        [samples.digit(5)[0][place] for place in shown]
    # Done right: another seed, other channels; none twice; and no more than there are.
    maps = torch.zeros(1, 32, 2, 2)
    first, again, other = (feature_grid(maps, channels=16, seed=seed).channels for seed in (7, 7, 8))
    assert first == again != other
    assert len(set(first)) == 16
    assert max(first) > 15
    assert feature_grid(samples.digit(5), channels=16, seed=7).channels == [0]


@shows("D2.4")
def each_subplot_has_its_own_scale() -> None:
    from matplotlib.figure import Figure

    five = samples.digit(5)[0, 0]
    axes = Figure().subplots(1, 2)
    images = [ax.imshow(one.numpy()) for ax, one in zip(axes, (five, 100 * five), strict=True)]
    assert [image.get_clim() for image in images] == [(0, 1), (0, 100)]
    one, hundred = (image.to_rgba(image.get_array()) for image in images)
    assert (one == hundred).all(), "nothing on the picture tells that one map is 100 times as strong"
    pair = torch.stack([five, 100 * five])
    assert feature_grid(pair).scale == "per channel"
    assert feature_grid(pair, scale="shared").scale == (0, 100)


@shows("D2.8")
def a_dataset_is_indexable_and_its_loader_is_not() -> None:
    images, labels = samples.digits()
    dataset = TensorDataset(images, labels)
    loader = DataLoader(dataset, batch_size=4)
    with pytest.raises(TypeError, match="not subscriptable"):
        loader[0]
    x, _ = dataset[0]
    assert x.shape == (1, 28, 28), "without a batch axis"
    assert samples.digit_cnn()(x[None]).shape == (1, 10)
    with pytest.raises(RuntimeError):
        samples.digit_cnn()(x)
    assert next(iter(loader))[0].shape == (4, 1, 28, 28)


@shows("D2.10")
def vgg_and_resnet_take_the_same_forward_hooks_only() -> None:
    from torchvision import models

    photo = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    resnet, vgg = models.resnet18().eval(), models.vgg16().features.eval()

    def raises(network: nn.Module, layer: nn.Module) -> bool:
        with layer.register_full_backward_hook(lambda module, grad_input, grad_output: None):
            try:
                network(photo)
            except RuntimeError as error:
                return "is a view and is being modified inplace" in str(error)
        return False

    expected = [
        (resnet, nn.Conv2d, 20, 0),
        (resnet, nn.BatchNorm2d, 20, 17),  # not the three that a downsampling ends in
        (resnet, nn.ReLU, 9, 9),
        (vgg, nn.Conv2d, 13, 13),
        (vgg, nn.ReLU, 13, 13),
    ]
    for network, kind, total, raising in expected:
        layers = [*find_layers(network, kind).values()]
        fired: set[nn.Module] = set()
        handles = [layer.register_forward_hook(lambda module, *rest, to=fired: to.add(module)) for layer in layers]
        network(photo)
        for handle in handles:
            handle.remove()
        assert fired == set(layers)
        assert [len(layers), sum(raises(network, layer) for layer in layers)] == [total, raising]

    # What does work on both: a hook on the output tensor. And an output kept without a copy is spoiled in VGG.
    for network, spoiled in ((resnet, 0), (vgg, 13)):
        convs = [*find_layers(network, nn.Conv2d).values()]
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        grads: list[torch.Tensor] = []

        def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
            output.register_hook(grads.append)  # noqa: B023
            kept.append((output.detach(), output.detach().clone()))  # noqa: B023

        handles = [conv.register_forward_hook(keep) for conv in convs]
        network(photo).sum().backward()
        for handle in handles:
            handle.remove()
        assert len(grads) == len(convs)
        assert sum(not torch.equal(output, copy) for output, copy in kept) == spoiled
