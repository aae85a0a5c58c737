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

from hookscope import census, compare_backward_hooks, feature_grid, find_layers, graph, record, samples
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


def five_ones(*hooks: Callable[[torch.Tensor], object]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `a` (five ones) and `b = 2 * a`, with these hooks on `b`, after the mean of `b` has gone backward."""
    a = torch.ones(5, requires_grad=True)
    b = 2 * a
    b.retain_grad()
    for hook in hooks:
        b.register_hook(hook)
    b.mean().backward()
    return a, b


FIVE = torch.ones(5)


@shows("D3.9")
def means_by_hand() -> None:
    seen: list[torch.Tensor] = []
    a, b = five_ones(seen.append)
    torch.testing.assert_close(a.grad, 0.4 * FIVE)
    torch.testing.assert_close(b.grad, 0.2 * FIVE)
    assert torch.equal(seen[0], b.grad)


@shows("D4.2")
@shows("D3.8")
def an_intermediate_gradient_is_not_kept() -> None:
    a = torch.ones(5, requires_grad=True)
    b, k = 2 * a, torch.ones(5)
    seen: list[torch.Tensor] = []
    b.register_hook(seen.append)
    b.mean().backward()
    with pytest.warns(UserWarning, match="a Tensor that is not a leaf Tensor is being accessed"):
        assert b.grad is None
    assert len(seen) == 1
    flags = [(tensor.is_leaf, tensor.requires_grad, tensor.retains_grad) for tensor in (a, b, k, 2 * k)]
    assert flags == [(True, True, False), (False, True, False), (True, False, False), (True, False, False)]
    a, b = five_ones()
    assert b.retains_grad
    assert b.grad is not None


@shows("D3.7")
def a_returned_tensor_flows_on() -> None:
    for hook, factor in ((lambda grad: None, 1), (lambda grad: 2 * grad, 2)):
        a, b = five_ones(hook)
        torch.testing.assert_close(a.grad, factor * 0.4 * FIVE)
        torch.testing.assert_close(b.grad, factor * 0.2 * FIVE)
    # What takes its place has the same shape and dtype, and is a new tensor.
    for wrong, message in (
        (lambda grad: grad[:1], "changed the size"),
        (lambda grad: grad.double(), "changed the type"),
        (lambda grad: 2.0, "expected Variable, but hook returned 'float'"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=message):
            five_ones(wrong)
    a, b = five_ones(lambda grad: grad.mul_(2))
    torch.testing.assert_close(a.grad, 0.8 * FIVE)
    b = 2 * a
    b.register_hook(lambda grad: grad.mul_(2))
    with pytest.raises(RuntimeError, match="single memory location"):
        b.sum().backward()


@shows("D3.10")
def too_late_after_backward() -> None:
    a, b = five_ones()
    b.grad *= 2
    torch.testing.assert_close(b.grad, 0.4 * FIVE)
    torch.testing.assert_close(a.grad, 0.4 * FIVE)


@shows("D0.9")
def a_hook_gets_the_gradient_at_its_place_in_the_line() -> None:
    for place, expected in enumerate((5, 50, 51)):
        x = torch.tensor(3.0, requires_grad=True)
        y, seen = 2 * x, []
        line = [lambda grad: 10 * grad, lambda grad: grad + 1]
        line.insert(place, lambda grad, to=seen: to.append(grad.item()))
        for number, hook in enumerate(line):
            if number == place:
                y.retain_grad()
            y.register_hook(hook)
        (5 * y).backward()
        assert [seen, y.grad, x.grad] == [[expected], 51, 102], "wherever retain_grad() stands"
    # In place: the hook stays with the old grad_fn, retain_grad goes along, and a hook on a view is not called.
    for on, when, expected in (("y", "before", [50]), ("y", "after", [5]), ("v", "before", []), ("v", "after", [5])):
        x = torch.tensor([3.0], requires_grad=True)
        y, seen = 2 * x, []
        y.retain_grad()
        v = y[:1]
        for moment in ("before", "edit", "after"):
            if moment == "edit":
                y.mul_(10)
            elif moment == when:
                {"y": y, "v": v}[on].register_hook(lambda grad, to=seen: to.append(grad.item()))
        (5 * v).sum().backward()
        assert [seen, y.grad, x.grad] == [expected, 5, 100]


@shows("D3.2")
def only_what_is_recorded_has_a_grad_fn() -> None:
    a = torch.ones(5, requires_grad=True)
    assert (a + a).grad_fn.name() == "AddBackward0"
    assert (FIVE + FIVE).grad_fn is None
    with torch.no_grad():
        assert (a + a).grad_fn is None


@shows("D3.6")
def the_hooks_of_a_tensor_come_going_back() -> None:
    registers = [name for name in dir(torch.Tensor) if name.startswith("register")]
    assert registers == ["register_hook", "register_post_accumulate_grad_hook"]
    seen: list[str] = []
    x = torch.tensor(3.0, requires_grad=True)
    x.register_hook(lambda grad: seen.append("hook"))
    x.register_post_accumulate_grad_hook(lambda x: seen.append("post-accumulate"))
    y = 2 * x
    assert seen == []
    y.backward()
    assert seen == ["hook", "post-accumulate"]
    with pytest.raises(RuntimeError, match="cannot be registered on non-leaf tensors"):
        y.register_post_accumulate_grad_hook(print)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        FIVE.register_hook(print)


@shows("D1.3")
def collects_what_is_in_grad() -> None:
    for values in ([5.0], [[5.0, 5.0]]):
        weight = nn.Parameter(torch.tensor(values))
        answer: list[torch.Tensor] = []
        weight.register_hook(answer.extend)
        (2.0 * 3.0 * weight).sum().backward()
        assert torch.equal(torch.stack(answer), weight.grad)
        if weight.numel() == 1:
            assert answer == [*weight.grad]
        else:
            with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
                assert answer == [*weight.grad]
    # In a second pass a tensor hook gets that pass, .grad holds the total.
    layer, passes, totals = doubling(), [], []
    layer.weight.register_hook(lambda grad: passes.append(grad.item()))
    layer.weight.register_post_accumulate_grad_hook(lambda weight: totals.append(weight.grad.item()))
    for _ in range(2):
        layer(torch.tensor([[2.0]])).sum().backward()
    assert [passes, totals] == [[2, 2], [2, 4]]


class Product(nn.Module):
    """Returns x1 * x2 * W, with W = 5."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0]))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return x1 * x2 * self.W


@shows("D0.8")
def only_grad_input_can_be_changed() -> None:
    def run(method: str, hook: Callable[..., object]) -> list[float]:
        product, x1, x2 = Product(), torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
        getattr(product, method)(hook)
        product(x1, x2).backward()
        return [tensor.grad.item() for tensor in (x1, x2, product.W)]

    def spoil_grad_output(module: nn.Module, gi: tuple[torch.Tensor, ...], go: tuple[torch.Tensor, ...]) -> None:
        go[0].zero_()

    assert run("register_full_backward_hook", lambda module, gi, go: None) == [15, 10, 6]
    assert run("register_full_backward_hook", lambda module, gi, go: (10 * gi[0], gi[1])) == [150, 10, 6]
    assert run("register_full_backward_hook", spoil_grad_output) == [15, 10, 6], "it comes too late for that"
    assert run("register_full_backward_pre_hook", lambda module, go: (10 * go[0],)) == [150, 100, 60]

    linear, x = nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
    for size, complaint in {3: "invalid number of grad_input, got 3, but expected 1", 1: "changed the size"}.items():
        with linear.register_full_backward_hook(lambda module, gi, go: gi[0]), pytest.raises(RuntimeError) as caught:
            linear(x[:size]).sum().backward()
        assert complaint in str(caught.value), "a tensor is taken for a tuple of its rows"

    def note(module: nn.Module, gi: object, go: object) -> tuple[torch.Tensor]:
        assert gi == (None,)
        assert linear.weight.grad is None, "it does not wait"
        return (torch.zeros(3, 2),)

    linear.zero_grad()
    with (
        linear.register_full_backward_hook(note),
        pytest.raises(RuntimeError, match="where no input requires gradient should always return None"),
        pytest.warns(UserWarning, match="no inputs require gradients"),
    ):
        linear(x.detach()).sum().backward()


@shows("D1.5")
def grad_input_and_grad_output_are_the_grads() -> None:
    answer: list[torch.Tensor] = []
    product, x1, x2 = Product(), torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    product.register_full_backward_hook(lambda module, gi, go: answer.extend(gi + go))
    output = product(x1, x2)
    output.retain_grad()
    output.backward()
    assert [grad.item() for grad in answer] == [15, 10, 1]
    assert all(map(torch.equal, answer, (x1.grad, x2.grad, output.grad)))
    assert product.W.grad.item() == 6, "the parameter is not among them"


@shows("D2.6")
def gradient_maps_are_tuple_sample_channel() -> None:
    net, five = samples.digit_cnn(), samples.digit(5)
    got: dict[str, tuple[torch.Tensor, ...]] = {}
    net.block3.register_full_backward_hook(lambda module, gi, go: got.update(gi=gi, go=go))
    ends: list[torch.Tensor] = []
    net.block3.register_forward_hook(lambda module, args, output: ends.extend((args[0], output)))
    scores = net(five)
    for tensor in ends:
        tensor.retain_grad()
    nn.functional.cross_entropy(scores, torch.tensor([5])).backward()
    for end, shape, tensor in zip(("gi", "go"), ((14, 14), (7, 7)), ends, strict=True):
        assert isinstance(got[end], tuple)
        assert torch.equal(got[end][0], tensor.grad)
        assert {got[end][0][0][i].shape for i in range(16)} == {shape}
        assert feature_grid(got[end][0], center=0).channels == list(range(16))
    assert [got["gi"][0].shape[1], got["go"][0].shape[1]] == [24, 32]


@shows("D2.7")
def kl_div_loss_on_scores_asks_nothing_of_the_picture() -> None:
    gradients = []
    for label in (5, 1, 3):
        scores = samples.digit_cnn()(samples.digit(label))
        scores.retain_grad()
        with pytest.warns(UserWarning, match="reduction: 'mean' divides the total loss"):
            loss = nn.KLDivLoss()(scores, torch.eye(10)[3])
        loss.backward()
        assert loss.item() == pytest.approx(-scores[0, 3].item() / 10), "below zero if score 3 is above, without an end"
        gradients.append(scores.grad)
    expected = torch.zeros(1, 10)
    expected[0, 3] = -0.1
    assert all(torch.equal(gradient, expected) for gradient in gradients), "the same for every picture"

    for label, most in ((5, 1e-4), (1, 1.0)):
        scores = samples.digit_cnn()(samples.digit(label))
        scores.retain_grad()
        nn.functional.cross_entropy(scores, torch.tensor([label])).backward()
        chances = scores.softmax(1).detach() - torch.eye(10)[label]
        assert torch.allclose(scores.grad, chances, atol=1e-6), "cross-entropy sends back what was wrong"
        assert 0 < scores.grad.abs().max() < most
    assert scores.grad.abs().max() > 0.1, "the 1 is misread"


class Sum(nn.Module):
    """Three arguments, two additions."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y + z


class LinearUpToTwo(nn.Linear):
    """A Linear layer in the steps that torch 1.0 to 2.0 took for 1-D input (recorded there)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unsqueeze(0) @ self.weight.T).squeeze(0) + self.bias


def own_nodes(output: torch.Tensor) -> list[str]:
    return [node.name for node in graph(output).nodes if not node.leaf]


def grad_inputs(kind: str, module: nn.Module, *inputs: torch.Tensor) -> list[object]:
    """The grad_input that a backward hook gets: "legacy" or "full"."""
    seen: list[tuple[torch.Tensor | None, ...]] = []
    register = module.register_backward_hook if kind == "legacy" else module.register_full_backward_hook
    with register(lambda module, grad_input, grad_output: seen.append(grad_input)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module(*inputs).sum().backward()
    return [None if grad is None else (*grad.shape,) for grad in seen[0]]


def needing(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


@shows("D2.5")
def a_legacy_hook_on_a_block_shows_its_last_step() -> None:
    five = samples.digit(5)
    ends: list[tuple[int, ...]] = []
    net = samples.digit_cnn()
    with net.block3.register_forward_pre_hook(lambda module, args: ends.append((*args[0].shape,))):
        net(five)
    seen: dict[str, torch.Tensor] = {}
    with (
        net.block3.register_backward_hook(lambda module, gi, go: seen.update(legacy=gi[0])),
        pytest.warns(FutureWarning, match="non-full backward hook"),
    ):
        net(five)[0, 5].backward()
    # Off, and yet the module refuses the other kind; so does a copy. A new module does not.
    assert len(census(net)) == 0
    for latched in (net, copy.deepcopy(net)):
        with pytest.raises(RuntimeError, match="Cannot use both regular backward hooks and full backward hooks"):
            latched.block3.register_full_backward_hook(lambda *_: None)
    net = samples.digit_cnn()
    with net.block3.register_full_backward_hook(lambda module, gi, go: seen.update(full=gi[0])):
        net(five)[0, 5].backward()
    assert ends == [seen["full"].shape] == [(1, 24, 14, 14)]
    assert seen["legacy"].shape == (1, 32, 14, 14), "the input of the pooling"
    # One bright point in each square of four: the pooling lets the highest of them through.
    squares = nn.functional.unfold(seen["legacy"].ne(0).float().transpose(0, 1), 2, stride=2).sum(1)
    assert squares.max() == 1


@shows("D3.1")
def a_forward_hook_fires_without_any_autograd_node() -> None:
    fired: list[object] = []
    for module, args in ((Sum(), (THREE, THREE, THREE)), (nn.Linear(1, 1), (THREE,))):
        with torch.no_grad(), module.register_forward_hook(lambda module, args, output: fired.append(output.grad_fn)):
            module(*args)
    assert fired == [None, None], "once per call, however many operations"


@shows("D3.3")
def a_linear_layer_is_one_addmm() -> None:
    layer = nn.Linear(160, 5)
    assert own_nodes(layer(torch.ones(7, 160))) == ["AddmmBackward0", "TBackward0"]
    assert own_nodes(layer(torch.ones(160))) == ["UnsafeViewBackward0", "AddmmBackward0", "TBackward0"]
    needs = own_nodes(layer(needing(160)))
    assert needs == ["UnsafeViewBackward0", "AddmmBackward0", "ViewBackward0", "TBackward0"]


@shows("D3.4")
def only_a_legacy_hook_catches_a_step() -> None:
    blocks = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    assert grad_inputs("legacy", blocks, needing(3, 4)) == [(3, 5)]
    assert grad_inputs("full", nn.Sequential(nn.Linear(4, 5), nn.ReLU()), needing(3, 4)) == [(3, 4)]
    # The hook is on the node of the output: a hook put there by hand gets the very same tensors.
    layer, seen = nn.Linear(160, 5), []
    layer.register_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
    with pytest.warns(FutureWarning, match="This hook will be missing some grad_input"):
        output = layer(torch.ones(160))
    output.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.append(grad_inputs))
    output.sum().backward()
    assert [grad.data_ptr() for (grad,) in seen] == [seen[0][0].data_ptr()] * 2


@shows("D3.5")
def args_are_the_positional_arguments() -> None:
    lengths = []
    for module, args in ((Sum(), (THREE, THREE, THREE)), (nn.Linear(1, 1), (THREE,)), (nn.Identity(), (THREE,))):
        with module.register_forward_hook(lambda module, args, output: lengths.append((type(args), len(args)))):
            module(*args)
    assert lengths == [(tuple, 3), (tuple, 1), (tuple, 1)]


@shows("D3.12")
def none_is_an_input_that_requires_no_gradient() -> None:
    parameters = [(10, 3, 2, 2), (10,)]
    assert grad_inputs("legacy", nn.Conv2d(3, 10, 2, stride=2), torch.randn(1, 3, 8, 8)) == [None, *parameters]
    assert grad_inputs("legacy", nn.Conv2d(3, 10, 2, stride=2), needing(1, 3, 8, 8)) == [(1, 3, 8, 8), *parameters]
    # And it is None also behind another layer, if nothing there requires a gradient.
    conv = nn.Conv2d(3, 10, 2, stride=2)
    assert grad_inputs("legacy", conv, nn.ReLU()(torch.randn(1, 3, 8, 8))) == [None, *parameters]


@shows("D3.13")
def print_and_explanation_are_of_two_versions() -> None:
    assert grad_inputs("legacy", nn.Linear(160, 5), needing(160)) == [(1, 5)]
    assert grad_inputs("legacy", LinearUpToTwo(160, 5), needing(160)) == [(5,), (5,)]
    for kind in (nn.Linear, LinearUpToTwo):
        assert grad_inputs("full", kind(160, 5), needing(160)) == [(160,)]
    names = [node and node.name() for node, _ in LinearUpToTwo(160, 5)(needing(160)).grad_fn.next_functions]
    assert [name.rstrip("0123456789").split("::")[-1] for name in names] == ["SqueezeBackward", "AccumulateGrad"]


@shows("D3.14")
def the_weight_is_outputs_by_inputs() -> None:
    layer = nn.Linear(160, 5)
    assert layer.weight.shape == (5, 160)
    both = compare_backward_hooks(layer, needing(7, 160))
    assert both.legacy.shapes["grad_input"] == ((5,), (7, 160), (160, 5))
    assert "grad_input[2] is weight.grad.T" in both.explanation


@shows("D3.15")
def a_convolution_is_one_node() -> None:
    assert own_nodes(nn.Conv2d(3, 10, 2, stride=2)(needing(1, 3, 8, 8))) == ["ConvolutionBackward0"]


@shows("D3.16")
def a_full_hook_has_one_entry_per_argument() -> None:
    cases: list[tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...], int]] = [
        (lambda: nn.Linear(4, 5), (needing(4),), 1),
        (lambda: nn.Linear(4, 5), (needing(3, 4),), 3),
        (lambda: nn.Linear(4, 5), (needing(2, 3, 4),), 1),
        (lambda: nn.Linear(4, 5, bias=False), (needing(4),), 1),
        (lambda: nn.Linear(4, 5, bias=False), (needing(3, 4),), 2),
        (lambda: nn.Linear(4, 5, bias=False), (needing(2, 3, 4),), 1),
        (lambda: nn.BatchNorm2d(3), (needing(2, 3, 4, 4),), 3),
        (Sum, (needing(2), needing(2), needing(2)), 2),
    ]
    for make, inputs, legacy in cases:
        assert grad_inputs("full", make(), *inputs) == [(*value.shape,) for value in inputs]
        assert len(grad_inputs("legacy", make(), *inputs)) == legacy
    assert grad_inputs("full", nn.Embedding(7, 3), torch.tensor([1, 2])) == [None]
    assert grad_inputs("legacy", nn.Embedding(7, 3), torch.tensor([1, 2])) == [(7, 3)]


@shows("D3.17")
def a_lambda_is_no_module() -> None:
    class WithLambda(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flatten = lambda x: x.view(-1)

    module = WithLambda()
    one, two = torch.ones(1, 10, 4, 4), torch.ones(2, 10, 4, 4)
    assert torch.equal(module.flatten(one), nn.Flatten()(one)[0])
    assert not [*module.children()]
    assert not hasattr(module.flatten, "register_forward_hook")
    assert module.flatten(two).shape == (320,)
    assert nn.Flatten()(two).shape == (2, 160)


@shows("D4.8")
def what_a_legacy_hook_returns_replaces_what_the_node_passes_on() -> None:
    def ten_times(module: nn.Module, grad_input: object, grad_output: object) -> tuple[torch.Tensor, ...]:
        assert isinstance(grad_input, tuple)
        return tuple(10 * grad for grad in grad_input)

    results = []
    for method in ("register_backward_hook", "register_full_backward_hook"):
        layer, x = doubling(), THREE.clone().requires_grad_()
        with getattr(layer, method)(ten_times), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            layer(x).sum().backward()
        results.append((x.grad.item(), layer.weight.grad.item()))
    assert results == [(20, 30), (20, 3)]
