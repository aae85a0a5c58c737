"""The layer picker as a Python object: what it keeps, what it draws, what it says, what it leaves alone."""

from typing import Any

import ipywidgets
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import LayerNotFoundError, samples
from hookscope.pictures.picture import as_text
from hookscope.widgets import LayerPicker, base
from hookscope.widgets.view import image_of, maps_of, order_of
from tests.shared.awkward import MODELS, Do, Net


def digits() -> LayerPicker:
    return LayerPicker(samples.digit_cnn(), samples.digit(5))


def convs(channels: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(5)
    )


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def test_it_begins_with_the_first_layer_that_has_maps() -> None:
    picker = digits()
    assert picker.layer == "block1.conv"
    assert repr(picker) == (
        "LayerPicker DigitCNN: block1.conv (Conv2d), activation (1, 16, 28, 28), channels 0 to 15, all there are"
    )
    data, _ = picker._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert f'<img alt="{picker.alt}"' in data["text/html"]
    assert "block1.conv (Conv2d)" in picker.alt
    assert data["text/plain"] == repr(picker)
    assert "application/vnd.jupyter.widget-view+json" in data


def test_every_layer_of_a_model_can_be_picked_and_is_what_capture_gives() -> None:
    model, x = samples.digit_cnn(), samples.digit(3)
    with torch.no_grad(), hookscope.capture(model.eval(), lambda name, module: True) as seen:
        model(x)
    picker = LayerPicker(model, x)
    pictures = set()
    for name in seen:
        picker.layer = name
        assert torch.equal(picker.activation, seen[name].output)
        assert not picker.problem
        pictures.add(picker.png)
    assert len(pictures) > len(seen) / 2


@pytest.mark.parametrize("name", [name for name in list(MODELS)[:16] if name != "faster r-cnn"])
@pytest.mark.filterwarnings("ignore:hookscope. hooks switch off")
def test_awkward_models_can_be_walked_through(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    picker = LayerPicker(model, *args, kwargs=kwargs)
    for row in picker.tree:
        if row["why"]:
            with pytest.raises(LayerNotFoundError, match=r"was not called|cannot be hooked"):
                picker.layer = row["name"]
            continue
        picker.layer = row["name"]
        for call in range(1, picker.calls + 1):
            picker.call = call
            for part in picker.parts:
                picker.part = part
                assert not picker.problem, (row["name"], picker.problem)
    assert len(hookscope.census(model)) == 0


def test_wrong_choices_are_refused_in_words_and_change_nothing() -> None:
    picker = digits()
    before = picker.png
    for name, value, words in [
        ("layer", "block1.cnov", "no layer 'block1.cnov'; did you mean 'block1.conv'"),
        ("show", "gradiant", "show='gradiant': give 'activation', 'gradient'"),
        ("order", "size", "order='size': give 'index'"),
        ("channel", 16, "channel=16: give -1 to 15"),
        ("sample", 1, "sample=1: give 0 to 0"),
        ("call", 2, "call=2: give 1 to 1"),
        ("target", 10, "target=10: give -1 to 9"),
        ("per_page", 0, "per_page=0: give 1 to 256"),
        ("part", "[0]", "part='[0]': there are ''"),
    ]:
        with pytest.raises((ValueError, LayerNotFoundError), match=words.replace("[", r"\[")):
            setattr(picker, name, value)
    assert picker.png == before
    with pytest.raises(TypeError, match="no property 'layr'"):
        LayerPicker(samples.digit_cnn(), samples.digit(5), layr="fc")
    with pytest.raises(LayerNotFoundError, match="did you mean"):
        LayerPicker(samples.digit_cnn(), samples.digit(5), layer="block1.cnov")


@pytest.mark.parametrize("named", [{}, {"layer": ""}])
def test_choices_are_taken_when_the_first_layer_is_the_model_itself(named: dict[str, str]) -> None:
    lstm, x = nn.LSTM(4, 5, num_layers=2, batch_first=True), torch.randn(3, 7, 4)
    picker = LayerPicker(lstm, x, **named, sample=1, part="[1][0]")
    assert (picker.layer, picker.part, picker.sample, picker.activation.shape) == ("", "[1][0]", 1, (2, 3, 5))
    assert not picker.problem
    conv = LayerPicker(nn.Conv2d(1, 3, 3), torch.randn(4, 1, 8, 8), **named, sample=3, channel=2)
    assert (conv.sample, conv.channel) == (3, 2)
    assert conv.large
    with pytest.raises(ValueError, match="sample=4: give 0 to 3"):
        LayerPicker(nn.Conv2d(1, 3, 3), torch.randn(4, 1, 8, 8), **named, sample=4)


def test_choices_are_taken_in_any_order() -> None:
    model = convs(40)
    model(images())
    picker = LayerPicker(
        model, images(), channel=33, page=2, per_page=16, target=3, sample=1, show="gradient", layer="2"
    )
    assert (picker.layer, picker.channel, picker.page, picker.channels) == ("2", 33, 2, list(range(32, 40)))


def test_of_several_samples_the_one_that_is_shown_is_named() -> None:
    picker = LayerPicker(convs()[:1], images(), layer="0", sample=2)
    assert repr(picker) == (
        "LayerPicker Sequential: 0 (Conv2d), activation (4, 8, 8, 8), sample 2 of 0 to 3, channels 0 to 7, "
        "all there are"
    )
    assert "sample 2" in picker.caption
    assert "sample" not in repr(digits())


def test_a_pass_that_would_keep_too_much_is_refused_with_the_way_out() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), images()
    words = "outputs of all layers take more than max_bytes=9,000: give fewer or smaller inputs, .* a larger max_bytes"
    with pytest.raises(MemoryError, match=words):
        LayerPicker(model, x, max_bytes=9_000)
    assert len(hookscope.census(model)) == 0
    assert LayerPicker(model, x[:1], max_bytes=9_000).activation.shape == (1, 8, 8, 8)
    assert not LayerPicker(model, x, max_bytes=None).problem
    # A pass with gradients, and one that has grown since: the picker says so, and stays as it was.
    picker = LayerPicker(model, x[:1], max_bytes=9_000)
    before = picker.activation
    model.append(nn.Conv2d(8, 60, 3))
    picker.run()
    assert "MemoryError: the outputs of all layers take more" in picker.problem
    assert len(hookscope.census(model)) == 0
    assert torch.equal(picker.activation, before)


def test_a_memory_error_of_the_model_s_own_is_not_explained_away() -> None:
    def full(x: Tensor) -> Tensor:
        raise MemoryError("the disk is full")

    with pytest.raises(MemoryError, match="the disk is full"):
        LayerPicker(Do(full), torch.zeros(1))


def test_the_model_stays_as_it_was() -> None:
    model = convs()
    model(images())  # makes the lazy layer
    model.train()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    picker = LayerPicker(model, images())
    picker.show = "gradient"
    picker.target = 2
    picker.run()
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])
    assert len(hookscope.census(model)) == 0


@pytest.mark.parametrize("target", [-1, 3])
def test_gradients_are_those_of_the_chosen_class(target: int) -> None:
    model, x = convs().eval(), images()
    model(x)
    picker = LayerPicker(model, x, layer="1", show="gradient", target=target)
    normed = model[1](model[0](x)).detach().requires_grad_()
    scores = model[4](model[3](normed.relu()))
    (scores.max(dim=1).values if target < 0 else scores[:, target]).sum().backward()
    torch.testing.assert_close(picker.gradient, normed.grad)
    torch.testing.assert_close(picker.shown, normed.grad)
    picker.show = "activation × gradient"
    torch.testing.assert_close(picker.shown, normed.grad * normed)
    assert "grey" in picker.caption or "0" in picker.caption


def test_a_frozen_model_has_gradients_by_its_input_and_one_without_any_says_so() -> None:
    model = convs().eval()
    model(images())
    model.requires_grad_(False)
    picker = LayerPicker(model, images(), show="gradient")
    assert picker.gradient.abs().sum() > 0
    index = LayerPicker(nn.Embedding(4, 3).requires_grad_(False), torch.tensor([[1, 2]]))
    index.show = "gradient"
    assert "does not require grad" in index.problem
    index.show = "activation"
    assert not index.problem


def test_a_call_of_a_shared_module_and_a_part_of_a_tuple() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 3), relu)
    picker = LayerPicker(model, torch.randn(2, 4), layer="1")
    assert picker.calls == 2
    assert picker.activation.shape == (2, 6)
    picker.call = 2
    assert picker.activation.shape == (2, 3)
    picker.layer = "0"
    assert (picker.call, picker.calls) == (1, 1)
    lstm = LayerPicker(nn.LSTM(4, 5, batch_first=True), torch.randn(2, 7, 4))
    assert lstm.parts == ["[0]", "[1][0]", "[1][1]"]
    assert "tokens" in lstm.caption
    lstm.part = "[1][0]"
    assert lstm.activation.shape == (1, 2, 5)


@pytest.mark.parametrize("by", ["mean", "max", "zeros"])
def test_channels_are_ordered_by_what_is_asked(by: str) -> None:
    model, x = convs(40).eval(), images()
    model(x)
    picker = LayerPicker(model, x, layer="2", order=by, per_page=16, sample=2)
    maps = picker.activation[2].flatten(1)
    key = {"mean": maps.mean(1), "max": maps.amax(1), "zeros": (maps == 0).float().mean(1)}[by]
    assert picker.pages == 3
    assert key[picker.channels].tolist() == sorted(key.tolist(), reverse=True)[:16]
    picker.page = 2
    assert key[picker.channels].tolist() == sorted(key.tolist(), reverse=True)[32:]
    picker.order = "index"
    assert picker.page == 0
    assert picker.channels == list(range(16))


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (torch.randn(2, 3, 4, 5), (3, 4, 5)),
        (torch.randn(2, 3, 6, 4, 5), (3, 4, 30)),
        (torch.randn(2, 7, 9), (1, 7, 9)),
        (torch.randn(2, 10), (1, 1, 10)),
        (torch.randn(2, 100), (1, 2, 50)),
        (torch.randn(2, 101), (1, 1, 101)),
        (torch.randn(5), (1, 1, 5)),
        (torch.tensor(3.0), (1, 1, 1)),
        (torch.randn(2, 3, 4, 5) > 0, (3, 4, 5)),
        (torch.arange(24).reshape(1, 2, 3, 4), (2, 3, 4)),
        (torch.randn(2, 3, 4, 5, dtype=torch.complex64), (3, 4, 5)),
        (torch.eye(4).to_sparse(), (1, 1, 4)),
        (torch.randn(2, 3, 4, 5, dtype=torch.bfloat16), (3, 4, 5)),
    ],
)
def test_outputs_of_any_shape_and_dtype_are_shown(output: Tensor, shape: tuple[int, ...]) -> None:
    assert maps_of(output, 0)[0].shape == shape
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert not picker.problem
    assert picker.png
    for by in ("mean", "max", "zeros"):
        assert sorted(order_of(output, 0, by)) == list(range(shape[0]))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (torch.zeros(0, 3, 4, 4), "nothing to see"),
        (torch.zeros(1, 1, 1, 1, 1, 2), "too many axes"),
        ("text", "no tensor"),
    ],
)
def test_what_cannot_be_shown_is_said(output: Any, words: str) -> None:
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert words in picker.problem


def test_channels_last_reads_the_last_axis_as_channels() -> None:
    picker = LayerPicker(Do(lambda x: torch.arange(24.0).reshape(1, 2, 3, 4)), torch.zeros(1))
    assert picker.channels == [0, 1]
    picker.channels_last = True
    assert picker.channels == [0, 1, 2, 3]
    assert "(N, H, W, C)" in picker.caption


def test_a_channel_is_shown_large_with_its_numbers() -> None:
    picker = digits()
    assert not picker.large
    picker.channel = 3
    assert picker.large.startswith(b"\x89PNG")
    row = next(row for row in picker.rows if row["channel"] == 3)
    assert f"max {as_text(row['max'])}" in picker.large_alt
    assert picker.input_png.startswith(b"\x89PNG")
    picker.layer = "fc1" if "fc1" in picker._names else picker.tree[-1]["name"]
    assert picker.channel == -1
    assert not picker.large


def test_an_input_that_is_no_image_has_no_picture() -> None:
    assert image_of(torch.zeros(1, 5, 4, 4), 0) is None
    assert image_of(torch.full((1, 1, 4, 4), float("nan")), 0) is None
    assert image_of("text", 0) is None
    png, alt = image_of(torch.zeros(1, 3, 4, 4), 0) or (b"", "")
    assert png
    assert "4×4" in alt


def test_nan_and_dead_channels_are_said() -> None:
    output = torch.ones(1, 3, 4, 4)
    output[0, 0] = 0
    output[0, 1, 0, 0] = float("nan")
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert ["NaN or inf", "1"] in picker.facts
    assert picker.rows[0]["zeros %"] == 100


def test_an_overwritten_output_is_shown_as_it_was_and_said_to_be() -> None:
    model = convs().eval()
    model(images())
    picker = LayerPicker(model, images(), layer="1")
    assert (picker.activation < 0).any()
    assert any("layer 2 (ReLU); shown as it was before" in value for _, value in picker.facts)


def test_a_model_that_raises_leaves_no_hook_and_a_living_widget() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.angry = nn.Conv2d(1, 2, 3), True

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            if self.angry:
                raise ValueError("not today")
            return y

    model, x = Moody(), torch.zeros(1, 1, 8, 8)
    with pytest.raises(ValueError, match="not today"):
        LayerPicker(model, x)
    assert len(hookscope.census(model)) == 0
    model.angry = False
    picker = LayerPicker(model, x)
    model.angry = True
    picker.run()
    assert picker.problem == "ValueError: not today"
    assert len(hookscope.census(model)) == 0
    model.angry = False
    picker.run()
    assert not picker.problem
    picker.channel = 1
    assert picker.large


def test_run_again_takes_the_weights_and_hooks_of_now() -> None:
    model, x = convs().eval(), images()
    model(x)
    picker = LayerPicker(model, x, layer="0")
    before, png = picker.activation.clone(), picker.png
    with torch.no_grad():
        model[0].weight.mul_(-1)
    assert torch.equal(picker.activation, before)
    picker.run()
    assert not torch.equal(picker.activation, before)
    assert picker.png != png
    handle = model[0].register_forward_hook(lambda module, args, output: output * 0)
    picker.run()
    handle.remove()
    assert picker.layer == "0"
    assert picker.rows[0]["zeros %"] == 100


def test_a_message_from_the_page_runs_again() -> None:
    model = convs().eval()
    model(images())
    picker = LayerPicker(model, images(), layer="0")
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    picker.set_state({"_again": 1, "_request": 1})
    assert not picker.activation.any()


def test_classes_have_names() -> None:
    picker = LayerPicker(samples.digit_cnn(), samples.digit(5), classes=[f"digit {n}" for n in range(10)])
    assert picker.targets[3] == "digit 3"
    with pytest.raises(ValueError, match="2 names for 10 classes"):
        LayerPicker(samples.digit_cnn(), samples.digit(5), classes=["a", "b"])


def test_layers_never_called_say_why() -> None:
    model = Net(lambda self, x: self.used(x), used=nn.Linear(2, 2), idle=nn.Linear(2, 2), box=nn.ModuleList())
    why = {row["name"]: row["why"] for row in LayerPicker(model, torch.zeros(1, 2)).tree}
    assert why["used"] == ""
    assert "did not reach it" in why["idle"]
    assert "ModuleList" in why["box"]


def test_many_modules_and_many_channels() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(5000)])
    picker = LayerPicker(model, torch.zeros(1, 2, 4, 4))
    assert len(picker.tree) == 5001
    wide = LayerPicker(nn.Conv2d(1, 2048, 1), torch.ones(1, 1, 4, 4))
    assert wide.pages == 32
    wide.page = 31
    assert wide.channels[-1] == 2047


def test_a_cell_that_runs_again_closes_what_it_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run = 0
    monkeypatch.setattr(base, "_cell", lambda: ("cell", run))
    model = samples.digit_cnn()
    counts = []
    for run in range(100):  # noqa: B007 (read by the lambda)
        first = LayerPicker(model, samples.digit(5))
        second = LayerPicker(model, samples.digit(6))
        counts.append(len(ipywidgets.widgets.widget._instances))
    assert counts[0] == counts[1] == counts[-1]
    assert first.comm is not None
    assert second.comm is not None
    assert len(hookscope.census(model)) == 0
    other = LayerPicker(model, samples.digit(5))
    monkeypatch.setattr(base, "_cell", lambda: ("another cell", 1))
    LayerPicker(model, samples.digit(5))
    assert other.comm is not None


def test_a_closed_picker_lets_go() -> None:
    import gc
    import weakref

    model = convs().eval()
    model(images())
    picker = LayerPicker(model, images())
    picker.show = "gradient"
    gone = weakref.ref(picker.activation)
    picker.close()
    gc.collect()
    assert gone() is None
    assert repr(picker) == "LayerPicker closed"


def test_run_again_takes_new_gradients_and_draws_no_random_numbers_of_yours() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) * torch.rand(3)

    model = Noisy()
    random = torch.random.get_rng_state()
    picker = LayerPicker(model, torch.ones(2, 3), layer="scale", show="gradient", target=1)
    assert torch.equal(torch.random.get_rng_state(), random)
    before = picker.gradient.clone()
    torch.manual_seed(7)
    picker.run()
    assert not torch.equal(picker.gradient, before)
