"""Demonstrations of the claims of document D2: feature maps of a CNN that reads a 5."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookscope import feature_grid, find_layers, samples
from tests.course.claims import Found, shows

LAST: float | None = None


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
    # The shapes in the document's comments: those of a ResNet-50 and an image of 224×224, not of digits of 28×28.
    from torchvision.models import resnet

    stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1))
    first = resnet.Bottleneck(64, 64, downsample=nn.Conv2d(64, 256, 1))
    with first.register_forward_hook(look):
        first(stem(torch.zeros(1, 3, 224, 224)))
    assert [(*given[end],) for end in ("input", "output")] == [(1, 64, 56, 56), (256, 56, 56)]


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


@shows("D2.12")
def of_a_batch_of_one_randint_draws_zeros() -> Found:
    net, gradients = samples.digit_cnn(), []
    net.block3.register_full_backward_hook(lambda module, gi, go: gradients.extend((gi[0], go[0])))
    net(samples.digit(5))[0, 5].backward()
    random = [
        torch.randint(0, gradient.shape[0], (16,), generator=torch.Generator().manual_seed(0)).tolist()
        for gradient in gradients
    ]
    assert random == [[0] * 16] * 2, "shape[0] is the batch; the channels are shape[1]"
    assert [gradient.shape[1] for gradient in gradients] == [24, 32]
    shown = [[place for place, _ in enumerate(numbers)] for numbers in random]
    assert shown == [[*range(16)]] * 2, "and the zeros are dropped"
    return Found(holds=False, fails=True)


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


@shows("D2.6")
def gradient_maps_are_tuple_sample_channel() -> Found:
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
    # The document's hook is the legacy one: the same output, and another input.
    net, legacy = samples.digit_cnn(), {}
    net.block3.register_backward_hook(lambda module, gi, go: legacy.update(gi=gi[0], go=go[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.functional.cross_entropy(net(five), torch.tensor([5])).backward()
    assert torch.equal(legacy["go"], got["go"][0])
    return Found(holds=got["gi"][0].shape == (1, 24, 14, 14), fails=legacy["gi"].shape == (1, 32, 14, 14))


@shows("D2.7")
def kl_div_loss_hangs_on_how_the_network_ends() -> Found:
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

    # With log-probabilities it is a loss as it should be: a tenth of what cross-entropy sends back.
    by_picture = []
    for label in (5, 1):
        scores = samples.digit_cnn()(samples.digit(label)).detach().requires_grad_()
        with pytest.warns(UserWarning, match="reduction: 'mean'"):
            nn.KLDivLoss()(scores.log_softmax(1), torch.eye(10)[3]).backward()
        assert torch.allclose(scores.grad, (scores.softmax(1).detach() - torch.eye(10)[3]) / 10, atol=1e-6)
        by_picture.append(scores.grad)
    sensible = not torch.equal(*by_picture)
    return Found(holds=sensible, fails=True, hidden=sensible)


@shows("D2.8")
def a_dataset_is_indexable_and_its_loader_is_not() -> Found:
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
    # The document got an image this way, and showed it: what it indexed cannot have been a loader.
    image, label = dataset[0]
    return Found(holds=torch.equal(image, images[0]) and label == labels[0], fails=False)


@shows("D2.9")
def a_global_has_room_for_one_call() -> None:
    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        global LAST
        LAST = output.item()

    relu = nn.ReLU()
    relu.register_forward_hook(keep)
    for value in (3.0, 6.0):
        relu(torch.tensor(value))
        assert value == LAST, "of two calls, one is left"


@shows("D2.10")
def vgg_and_resnet_take_the_hooks_of_the_document() -> Found:
    from torchvision import models

    photo = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    resnet, vgg = models.resnet18().eval(), models.vgg.make_layers(models.vgg.cfgs["D"]).eval()

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

    # The document speaks of its forward hook, and of no full backward hook: it uses the legacy one, which works, too.
    missing: list[str] = []
    plain = {"init_weights": False}  # what they compute does not matter here, and making it up takes seconds
    for network in (models.vgg11(**plain).features, models.vgg16(**plain).features, models.resnet18()):
        network.eval()
        calls: set[tuple[str, str]] = set()
        for name, conv in find_layers(network, nn.Conv2d).items():
            conv.register_forward_hook(lambda *given, name=name, to=calls: to.add((name, "forward")))
            conv.register_backward_hook(lambda *given, name=name, to=calls: to.add((name, "legacy backward")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            network(photo).sum().backward()
        wanted = {(name, kind) for name in find_layers(network, nn.Conv2d) for kind in ("forward", "legacy backward")}
        missing += sorted(name for name, _ in wanted - calls)
    return Found(holds=not missing, fails=bool(missing))
