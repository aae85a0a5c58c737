"""Sentences of the chapters that were once too bold: what refuted them is run, and they must not come back."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from typing import Any
from warnings import catch_warnings

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, feature_grid, samples
from lessons.build import reading


def text_of(chapter: str, *files: str) -> str:
    """Return the texts of a chapter in one line."""
    (folder,) = reading.LESSONS.glob(f"{chapter}_*")
    texts = [(folder / name).read_text(encoding="utf-8") for name in files or ("lesson.md",)]
    return " ".join(" ".join(texts).split())


class Cell(nn.Module):
    """The cell of chapter 17: h = w · h + x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, h: Tensor, x: float) -> Tensor:
        return self.w * h + x


def test_what_chapter_17_prints_are_a_sum_and_gradients_of_h() -> None:
    cell, at_w, at_cell, parts = Cell(), list[float](), list[float](), list[float]()
    cell.w.register_hook(lambda grad: at_w.append(grad.item()))  # type: ignore[no-untyped-call]
    cell.register_full_backward_pre_hook(lambda module, grad_output: at_cell.append(grad_output[0].item()))
    cell.register_forward_hook(
        lambda module, args, output: output.register_hook(lambda grad: parts.append((grad * args[0]).item())) and None
    )
    h = torch.tensor([1.0], requires_grad=True)
    for _ in range(3):
        h = cell(h, 1.0)
    h.backward()  # type: ignore[no-untyped-call]
    assert (at_w, at_cell, parts) == ([17], [1, 2, 4], [7, 6, 4])
    assert sum(parts) == at_w[0]
    assert {*at_cell} & {*parts}, "4 is both a gradient of h and a part"
    assert "None of these numbers is the part" not in text_of("17")
    assert "17 is the sum over the three steps" in text_of("17")


def test_what_chapter_06_says_of_the_mean_of_a_conv() -> None:
    """Its positive and negative values do not cancel: the negative ones outweigh the others."""
    train, test, net = samples.digits("train"), samples.digits("test"), samples.digit_cnn()
    known, labels = train.images[:360], train.labels[:360]

    def maps(images: Tensor) -> Tensor:
        with torch.no_grad(), capture(net, "block3.conv") as seen:
            net(images)
        return seen["block3.conv"].output  # type: ignore[return-value]

    before, asked = maps(known), maps(test.images)
    positive, negative = asked.clamp(min=0).sum().item(), -asked.clamp(max=0).sum().item()
    assert round(negative / positive) == 5

    def count(part: Any) -> int:
        centers = torch.stack([part(before)[labels == digit].mean((0, 2, 3)) for digit in range(10)])
        return int((torch.cdist(part(asked).mean((2, 3)), centers).argmin(1) == test.labels).sum())

    assert (count(lambda o: o), count(lambda o: o.clamp(max=0)), count(torch.relu)) == (114, 114, 239)
    said = text_of("06", "lesson.md", "guesses.toml")
    assert "largely cancel" not in said
    assert "outweigh the positive values five to one, and 114 digits are right" in " ".join(said.split())
    assert "Now 239 digits are right." in " ".join(said.split())


def test_what_chapter_05_says_of_a_scale_of_its_own() -> None:
    """A map that is the same everywhere does not run through all colors."""
    drawn = feature_grid(torch.stack([torch.zeros(6, 6), torch.arange(36.0).view(6, 6)]))
    tiles = [drawn.mosaic[top : top + high, left : left + wide] for left, top, wide, high in drawn.boxes]
    assert tiles[0].max() == tiles[0].min() == tiles[1].min() < tiles[1].max()
    assert "If each map has its own scale, it uses all colors" not in text_of("05")


def test_what_chapter_07_says_of_detect_anomaly() -> None:
    assert "stops at the first step of the backward pass that returns a NaN" in text_of("07")

    def run(make: Any) -> None:
        with torch.autograd.set_detect_anomaly(True), catch_warnings(action="ignore"):
            make(torch.tensor([-1.0], requires_grad=True)).sum().backward()

    run(torch.log)  # a NaN in the forward pass
    run(lambda x: (x + 1).sqrt())  # inf
    with pytest.raises(RuntimeError, match="returned nan values"):
        run(torch.sqrt)


def test_what_chapter_08_says_of_paths_around_the_gate() -> None:
    layer = nn.Linear(2, 2)
    layer.register_full_backward_pre_hook(lambda module, grads: (0 * grads[0],))
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()
    (layer(torch.ones(1, 2)).sum() + layer.weight.square().sum()).backward()
    assert layer.weight.grad.any()
    assert "unless another path leads around" not in text_of("08")


def nodes_behind(output: Tensor) -> list[Any]:
    found, todo = list[Any](), [output.grad_fn]
    while todo:
        node = todo.pop(0)
        if node is not None and node not in found:
            found.append(node)
            todo += [before for before, _ in node.next_functions]
    return [node for node in found if node.name() == "BackwardHookFunctionBackward"]


def test_what_chapter_08_says_of_the_nodes_at_the_two_ends() -> None:
    """The pre-hook is called by the node behind the outputs, the hook by the one before the inputs."""
    for kind in ("full_backward_hook", "full_backward_pre_hook"):
        layer, order = nn.Linear(1, 1), list[str]()
        getattr(layer, f"register_{kind}")(lambda *_, order=order: order.append("hook"))
        output = layer(torch.ones(1, 1, requires_grad=True))
        behind, before = nodes_behind(output)
        assert behind is output.grad_fn
        before.register_prehook(lambda grads, order=order: order.append("before the inputs"))
        output.sum().backward()
        full = kind == "full_backward_hook"
        assert order == (["before the inputs", "hook"] if full else ["hook", "before the inputs"])
    plain = nn.Linear(1, 1)
    plain.register_full_backward_hook(lambda *_: None)
    assert len(nodes_behind(plain(torch.ones(1, 1)))) == 1, "no input requires grad"
    said = text_of("08")
    assert "This node carries your hook" not in said
    assert "sits on the same node" not in said
    assert "So torch adds two nodes of its own." in said


def test_what_chapter_08_says_of_what_a_hook_can_return_if_no_input_requires_grad() -> None:
    assert "If no input requires grad, the hook must return `None`." in text_of("08")
    layer = nn.Linear(1, 1)
    with (
        layer.register_full_backward_hook(lambda *_: (torch.zeros(1, 1),)),
        catch_warnings(action="ignore"),
        pytest.raises(RuntimeError, match="should always return None"),
    ):
        layer(torch.ones(1, 1)).sum().backward()


def test_what_chapter_07_says_of_the_warning_for_grad() -> None:
    x = torch.ones(1, requires_grad=True)
    with pytest.warns(UserWarning, match="not a leaf"):
        assert (2 * x).grad is None
    with catch_warnings(action="error"):
        assert torch.ones(1).grad is None
    assert "but there torch does not warn" in text_of("07")


def test_what_chapter_09_says_of_the_view_that_a_layer_gets() -> None:
    assert "if the input requires grad, the layer gets a view of it" in text_of("09")

    def run(requires_grad: bool) -> None:
        relu = nn.ReLU(inplace=True)
        relu.register_full_backward_hook(lambda *_: None)
        relu(2 * torch.ones(2, requires_grad=requires_grad))

    run(False)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        run(True)


def test_what_chapter_09_says_of_the_last_step_with_rows() -> None:
    assert "With rows and a bias, the last step of a Linear layer is `AddmmBackward0`." in text_of("09")
    last = [nn.Linear(4, 5, bias=bias)(torch.ones(3, 4)).grad_fn for bias in (True, False)]
    assert [node.name() for node in last if node] == ["AddmmBackward0", "MmBackward0"]


def test_not_every_pooling_layer_picks_one_input() -> None:
    x = torch.rand(1, 1, 4, 4, requires_grad=True)
    for pool, nonzero in ((nn.MaxPool2d(2), 4), (nn.AvgPool2d(2), 16)):
        (grad,) = torch.autograd.grad(pool(x).sum(), x)
        assert int((grad != 0).sum()) == nonzero
    assert "A pooling layer passes each gradient on to one" not in text_of("09", "lesson.md", "guesses.toml")


def test_a_correlation_of_1_does_not_mean_the_same_image() -> None:
    image = torch.linspace(-1, 1, 49)
    assert torch.corrcoef(torch.stack([image, 0.1 * image + 0.5]))[0, 1].item() == pytest.approx(1)
    assert torch.corrcoef(torch.stack([image, image**2]))[0, 1].item() == pytest.approx(0, abs=1e-6)
    assert "means the same image" not in text_of("10")


def test_what_a_hook_writes_into_its_gradient_flows_on_though_it_returns_none() -> None:
    a = torch.tensor(2.0, requires_grad=True)
    d = 3 * a
    d.register_hook(lambda grad: grad.mul_(10) and None)  # type: ignore[no-untyped-call]
    (4 * d).backward()
    assert a.grad == 120
    assert "If the hook returns `None`, the gradient stays as it is." not in text_of("07")


def test_a_weight_that_is_made_anew_at_each_call_loses_a_hook() -> None:
    layer, got = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), list[Tensor]()
    layer.weight.register_hook(got.append)  # type: ignore[no-untyped-call, operator]
    layer(torch.ones(1, 2)).sum().backward()
    assert got == []
    assert "whatever the layer does with it" not in text_of("09", "exercises.md")


def test_what_chapter_09_says_of_four_inputs_that_are_0() -> None:
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(nn.MaxPool2d(2)(x).sum(), x)
    assert grad.flatten().tolist() == [1, 0, 0, 0]
    assert "torch takes the first input, at the top left" in text_of("09")


def test_what_chapter_09_says_of_a_convolution_that_reads_an_image() -> None:
    passed = list[list[Tensor | None]]()
    made = nn.Conv2d(3, 4, 3)(torch.rand(1, 3, 8, 8))
    assert made.grad_fn
    with made.grad_fn.register_hook(lambda grad_inputs, grad_outputs: passed.append([*grad_inputs])):
        made.sum().backward()
    ((image, weight, bias),) = passed
    assert image is None
    assert weight is not None
    assert bias is not None
    assert (weight.shape, bias.shape) == ((4, 3, 3, 3), (4,))
    assert "the first gradient is therefore `None`" in text_of("09")


def test_what_chapter_10_says_of_guided_images_with_random_weights() -> None:
    """They are more like the digit than those of the trained network: the sentence names two that show it."""
    net, images = samples.digit_cnn(), samples.digits("test").images[:3]
    classes = net(images).argmax(dim=1)
    torch.manual_seed(0)
    guessing = deepcopy(net)
    guessing.head.linear.reset_parameters()

    def likeness(model: nn.Module) -> list[float]:
        x = images.clone().requires_grad_()
        with ExitStack() as stack:
            for relu in (module for module in model.modules() if isinstance(module, nn.ReLU)):
                stack.enter_context(relu.register_full_backward_hook(lambda _, grad, __: (grad[0].clamp(min=0),)))
            (grad,) = torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)
        pairs = zip(grad.abs().flatten(1), images.flatten(1), strict=True)
        return [torch.corrcoef(torch.stack(pair))[0, 1].item() for pair in pairs]

    for digit, trained, random in zip(classes.tolist(), likeness(net), likeness(guessing), strict=True):
        assert random > trained + 0.1 or digit == 7
    assert classes.tolist() == [7, 9, 4]
    assert 'the 9 and the 4 look even more like digits than in the row "trained"' in text_of("10")
