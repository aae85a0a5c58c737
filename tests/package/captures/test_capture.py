"""capture: what it gives back, what it says when it cannot, and that it leaves no trace."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import nn

from hookscope import capture, census
from hookscope.captures.capture import NotCapturedError
from hookscope.layers.find import LayerNotFoundError

Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    logits: torch.Tensor
    extra: dict


def small() -> nn.Sequential:
    """y = relu(-1 * (1 + 1)) overwritten in place, then 3 * it."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(inplace=True), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net[0].weight, 2.0)
    nn.init.constant_(net[2].weight, 3.0)
    return net


X = torch.tensor([[1.0, -3.0]])  # net[0] gives -4, the ReLU 0


class Returns(nn.Module):
    """Returns what a function makes of the input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_an_output_is_as_it_was_when_the_layer_returned_it():
    net = small()
    with torch.no_grad(), capture(net) as seen:
        net(X)
    assert seen["0"].output.item() == -4
    assert seen["1"].output.item() == 0
    assert seen.order == ["0", "1", "2"]
    assert list(seen) == ["0", "1", "2"]
    assert seen.overwritten == {"0": "layer 1 (ReLU)"}


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y.mul_(0),
        lambda y: y[:, 0].fill_(9),
        lambda y: y.view(-1).relu_(),
        lambda y: y.t().zero_(),
        lambda y: y.data.copy_(torch.ones_like(y)),
        lambda y: torch.add(torch.ones_like(y), 1, out=y),
        lambda y: torch.relu_(y),
        lambda y: nn.functional.relu(y, inplace=True),
        lambda y: y.index_put_((torch.tensor([0]), torch.tensor([0])), torch.tensor(5.0)),
        lambda y: y.numpy().fill(3),
        lambda y: y.untyped_storage().fill_(0),
        lambda y: y.set_(torch.zeros(1, 1)),
        lambda y: torch._foreach_add_([y], 1),
        lambda y: y.copy_(torch.zeros(1, 1)),
        lambda y: y.chunk(1)[0].exp_(),
    ],
)
def test_no_way_of_writing_in_place_reaches_what_was_kept(write):
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, -2.0)

    def forward(x):
        y = linear(x)
        write(y)
        return y + 1

    net = Returns(forward)
    net.linear = linear
    with torch.no_grad(), capture(net) as seen:
        net(torch.ones(1, 1))
    assert seen["linear"].output.item() == -2


def test_an_output_is_safe_after_the_block_too():
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    with torch.no_grad(), capture(net) as seen:
        y = net(torch.ones(1, 1))
    y.zero_()
    assert seen[""].output.item() == 2
    assert y.item() == 0


def test_the_learner_may_write_to_what_was_captured():
    net = small()
    with torch.no_grad(), capture(net) as seen:
        y = net(X)
    seen["2"].output.add_(7)
    assert y.item() == 0


def test_gradients_beside_in_place_operations():
    net, x = small(), torch.tensor([[1.0, 3.0]], requires_grad=True)  # 8, 8, 24
    with capture(net, gradients=True) as seen:
        net(x).sum().backward()
    assert [seen[name].grad.item() for name in "012"] == [3, 3, 1]
    assert seen["0"].grad.requires_grad is False


def test_gradients_add_up_over_passes_as_in_tensor_grad():
    net = small()
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert seen["1"].grad.item() == 6
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        torch.autograd.grad(loss, net[0].weight)
    assert seen["1"].grad.item() == 3
    assert net[0].weight.grad is not None
    assert net[0].weight.grad.tolist() == [[6, 18]]


def test_gradients_of_nested_outputs_keep_their_structure():
    def forward(x):
        return {"a": 2 * x, "b": [3 * x, (4 * x).detach()], "n": 5}

    net = nn.Sequential(Returns(forward))
    with capture(net, gradients=True) as seen:
        out = net(torch.ones(1, requires_grad=True))
        (out["a"] * 10).sum().backward()
    assert seen["0"].grad == {"a": torch.tensor([10.0]), "b": [None, None], "n": 5}


@pytest.mark.parametrize(
    ("make", "same"),
    [
        (lambda x: (x, x + 1), tuple),
        (lambda x: [x, x + 1], list),
        (lambda x: {"a": x, "b": x + 1}, dict),
        (lambda x: OrderedDict(a=x, b=x + 1), OrderedDict),
        (lambda x: Pair(x, x + 1), Pair),
        (lambda x: Result(x, {"deep": (x + 1, "text")}), Result),
        (lambda x: torch.max(x, dim=0), torch.return_types.max),
    ],
)
def test_the_structure_of_an_output_is_kept(make, same):
    net = Returns(make)
    with capture(net) as seen:
        out = net(torch.arange(3.0))
    kept = seen[""].output
    assert type(kept) is type(out) is same
    if same is Result:
        assert torch.equal(kept.logits, out.logits)
        assert torch.equal(kept.extra["deep"][0], out.extra["deep"][0])
        assert kept.extra["deep"][1] == "text"
        assert kept is not out
        assert kept.extra is not out.extra
    else:
        pairs = zip(kept.values(), out.values(), strict=True) if isinstance(out, dict) else zip(kept, out, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_an_object_of_unknown_type_is_followed_by_its_attributes():
    class Images:
        def __init__(self, tensors):
            self.tensors = tensors
            self.sizes = [(1, 2)]

    def forward(x):
        box.append(Images(x * 2))
        return box[0]

    box: list[Images] = []
    net = Returns(forward)
    with torch.no_grad(), capture(net) as seen:
        net(torch.ones(2))
        box[0].tensors.zero_()
    assert seen[""].output.tensors.tolist() == [2, 2]
    assert seen[""].output.sizes == [(1, 2)]


def test_a_layer_called_twice_has_two_calls_and_no_single_output():
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 2.0)
    net = nn.Sequential(linear, linear)
    with capture(net, gradients=True) as seen:
        net(torch.ones(1, 1)).sum().backward()
    assert [call.output.item() for call in seen["0"].calls] == [2, 4]
    assert [call.grad.item() for call in seen["0"].calls] == [2, 1]
    assert [call.label for call in seen.calls] == ["0", "0#2"]
    for what in ("output", "grad", "args", "kwargs"):
        with pytest.raises(NotCapturedError, match=rf"called 2 times; .*seen\['0'\]\.calls\[0\]\.{what}"):
            getattr(seen["0"], what)


def test_inputs_are_as_they_were_before_an_in_place_layer_ran():
    net = small()
    with torch.no_grad(), capture(net, inputs=True) as seen:
        net(X)
    assert seen["1"].args[0].item() == -4
    assert seen["1"].kwargs == {}
    scale = Returns(lambda x, by: x * by)
    with capture(scale, inputs=True) as seen:
        scale(torch.ones(1), by=torch.tensor(3.0))
    assert seen[""].kwargs["by"].item() == 3


def test_what_was_not_asked_for_says_how_to_ask():
    net = small()
    with capture(net) as seen:
        net(X)
    with pytest.raises(NotCapturedError, match="gradients=True"):
        _ = seen["0"].grad
    with pytest.raises(NotCapturedError, match="inputs=True"):
        _ = seen["0"].args


def test_missing_gradients_say_why():
    net = small()
    with torch.no_grad(), capture(net, gradients=True) as seen:
        net(X)
    with pytest.raises(NotCapturedError, match="does not require grad"):
        _ = seen["0"].grad
    with capture(net, gradients=True) as seen:
        y = net(X)
    y.sum().backward()
    with pytest.raises(NotCapturedError, match=r"no gradient has reached 0; call backward\(\) inside the with-block"):
        _ = seen["0"].grad


def test_uncalled_layers_are_listed_with_a_reason():
    net = nn.Module()
    net.used, net.unused, net.several = nn.Linear(1, 1), nn.Linear(1, 1), nn.ModuleList([nn.ReLU()])
    net.attention = nn.MultiheadAttention(2, 1)
    net.forward = net.used.__call__
    with capture(net, lambda name, module: name != "") as seen:
        net(torch.ones(1, 1))
    assert list(seen) == ["used"]
    assert "did not reach it" in seen.uncalled["unused"]
    assert "never calls a ModuleList" in seen.uncalled["several"]
    assert "never calls it" in seen.uncalled["attention.out_proj"]
    with pytest.raises(NotCapturedError, match="layer 'unused' was not called"):
        _ = seen["unused"]
    with pytest.raises(LayerNotFoundError, match="did you mean 'used' or 'unused'"):
        _ = seen["uset"]
    with pytest.raises(LayerNotFoundError, match="did you mean"):
        capture(net, "uset")
    assert seen.get("unused") is None
    assert "unused" not in seen


def test_results_and_gradients_are_the_same_with_and_without():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten())
    x = torch.randn(2, 1, 6, 6)

    def run(with_capture):
        torch.manual_seed(1)
        net.zero_grad()
        net[1].reset_running_stats()
        if with_capture:
            with capture(net, gradients=True, inputs=True):
                y = net(x)
                y.sum().backward()
        else:
            y = net(x)
            y.sum().backward()
        return [y, torch.rand(1), net[1].running_mean.clone(), *(p.grad.clone() for p in net.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))
    assert all(module.training for module in net.modules())


_THE_SAME_MEMORY = {
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view": lambda x: x.view(1, 3),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("same", _THE_SAME_MEMORY.values(), ids=_THE_SAME_MEMORY)
@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_parameters_and_buffers_keep_their_address(kind, same, grad):
    """A layer may return its own parameter; copy-on-write would move it at the next optimizer step."""
    net = nn.Module()
    net.position = Returns(lambda: same(net.weight))
    net.weight = kind(torch.ones(3))
    net.forward = lambda: net.position() * 2
    address = net.weight.data_ptr()
    with torch.set_grad_enabled(grad), capture(net, "position") as seen:
        net()
    with torch.no_grad():
        net.weight.add_(1)
    assert net.weight.data_ptr() == address
    assert seen["position"].output.flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("same", _THE_SAME_MEMORY.values(), ids=_THE_SAME_MEMORY)
def test_the_callers_input_keeps_its_address(same, grad):
    net, x = nn.Sequential(Returns(same)), torch.ones(3)
    address = x.data_ptr()
    with torch.set_grad_enabled(grad), capture(net) as seen:
        net(x)
    x.add_(1)
    assert x.data_ptr() == address
    assert seen["0"].output.flatten().tolist() == [1, 1, 1]


def test_inference_mode_gives_usable_outputs():
    net = small()
    with torch.inference_mode(), capture(net) as seen:
        net(X)
    output = seen["0"].output
    assert output.item() == -4
    assert not output.is_inference()
    (output * torch.ones(1, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("stop", [ValueError("stop"), KeyboardInterrupt()])
def test_hooks_come_off_and_the_error_carries_what_was_captured(stop):
    def fail(x):
        raise stop

    net = nn.Sequential(nn.Linear(1, 1), Returns(fail), nn.Linear(1, 1))
    with pytest.raises(type(stop)) as caught, capture(net) as seen:
        net(torch.ones(1, 1))
    assert caught.value.capture is seen
    assert "2 calls were captured, the last one 1" in caught.value.__notes__[0]
    assert seen["0"].output.shape == (1, 1)
    with pytest.raises(NotCapturedError, match="call 1 raised"):
        _ = seen["1"].output
    assert len(census(net)) == 0


def test_a_layer_whose_exception_the_model_catches_does_not_confuse_the_rest():
    def fail(x):
        raise ValueError

    bad, good = Returns(fail), nn.ReLU()

    def forward(x):
        try:
            return bad(x)
        except ValueError:
            return good(x)

    net = Returns(forward)
    net.bad, net.good = bad, good
    with capture(net, "bad", "good", "") as seen:
        net(torch.ones(1))
    assert seen.order == ["", "bad", "good"]
    assert seen["good"].output.item() == 1
    assert seen[""].output.item() == 1
    with pytest.raises(NotCapturedError):
        _ = seen["bad"].output


def test_recursion_is_told_apart_by_calls():
    class Count(nn.Module):
        def forward(self, x, depth=2):
            return x if depth == 0 else self(x + 1, depth - 1) * 2

    with capture(Count()) as unused:
        pass
    assert len(unused) == 0
    net = Count()
    with capture(net) as seen:
        net(torch.zeros(1))
    assert [call.output.item() for call in seen[""].calls] == [8, 4, 2]


def test_two_captures_nest_and_one_can_be_entered_again():
    net = small()
    with torch.no_grad(), capture(net, "0") as outer:
        with capture(net, "0", "2") as inner:
            net(X)
        net(X)
    assert len(outer["0"].calls) == 2
    assert len(inner["0"].calls) == 1
    with pytest.raises(RuntimeError, match="already open"), outer, outer:
        pass
    with torch.no_grad(), outer:
        net(X * 2)
    assert outer["0"].output.item() == -8
    assert len(census(net)) == 0


def test_separate_models_in_separate_threads():
    errors = []

    def work(factor):
        try:
            net = small()
            for _ in range(20):
                with torch.no_grad(), capture(net) as seen:
                    net(X * factor)
                assert seen["0"].output.item() == -4 * factor
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_nothing_is_kept_alive():
    net = small()
    x = torch.tensor([[1.0, 3.0]], requires_grad=True)
    with capture(net, gradients=True) as seen:
        y = net(x)
    leaf_of_the_graph, model = weakref.ref(x), weakref.ref(net)
    del x, y
    gc.collect()
    assert leaf_of_the_graph() is None, "the capture must not keep the graph"
    del net
    gc.collect()
    assert seen["0"].output.item() == 8
    del seen
    gc.collect()
    assert model() is None


def test_compiled_and_scripted_models_are_refused_before_the_pass():
    net = small()
    with pytest.raises(ValueError, match=r"the model is compiled .*set_stance\("):
        capture(torch.compile(net))
    net[0].compile()
    with pytest.raises(ValueError, match=r"layer '0' is compiled, by \.compile\(\)"):
        capture(net)


def test_the_layers_of_a_fused_encoder_fire():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    with pytest.warns(UserWarning, match="fused path"), torch.no_grad(), capture(layer, "linear1") as seen:
        layer(torch.randn(1, 3, 4))
    assert seen["linear1"].output.shape == (1, 3, 8)


def test_its_table_gives_each_output_once_with_its_gradient_kept_too():
    net = small()
    with capture(net, gradients=True) as seen:
        net(torch.ones(1, 2)).sum().backward()
    assert [row["output"] for row in seen._table().rows] == ["(1, 1)"] * 3
    with capture(nn.LSTM(1, 2), gradients=True) as seen:
        seen._model(torch.ones(3, 1, 1))[0].sum().backward()
    assert seen._table().rows[0]["output"] == "(3, 1, 2), (1, 1, 2), (1, 1, 2)"


def test_it_shows_itself_as_a_table_with_escaped_names():
    net = nn.Module()
    evil = "<img src=x onerror=alert(1)>"
    net.add_module(evil, nn.ReLU(inplace=True))
    net.forward = net._modules[evil].__call__
    with capture(net, nn.ReLU) as seen:
        net(torch.ones(2))
    assert repr(seen).splitlines()[0] == "Module: 1 calls of 1 layers"
    html = seen._repr_mimebundle_()["text/html"]
    assert "&lt;img" in html
    assert "<img" not in html


def test_stats_in_place_of_tensors():
    net = small()
    with capture(net, gradients=True, inputs=True, keep="stats") as seen:
        net(torch.tensor([[1.0, 3.0], [0.0, -1.0]])).sum().backward()
    stats = seen["0"].stats  # 8 and -2
    assert (stats.shape, stats.dtype) == ((2, 1), torch.float32)
    assert (stats.mean, stats.std, stats.mean_abs, stats.min, stats.max) == (3, 5, 5, -2, 8)
    assert (stats.zeros, stats.nan, stats.inf) == (0, 0, 0)
    assert seen["1"].stats.zeros == 1
    assert seen["1"].args[0].min == -2
    assert seen["0"].grad_stats.mean == 1.5  # 3 and, where the ReLU is shut, 0
    with pytest.raises(NotCapturedError, match="only statistics were kept"):
        _ = seen["0"].output
    with capture(net) as seen:
        net(X)
    with pytest.raises(NotCapturedError, match="keep='stats'"):
        _ = seen["0"].stats


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 3.0]), (2, 1, 2, 1, 3, 0, 1, 2)),
        (torch.tensor([float("nan")]), (*[None] * 5, 0, 1, 0)),
        (torch.zeros(0, 3), (*[None] * 5, 0, 0, 0)),
        (torch.tensor([60000.0, 60000.0], dtype=torch.float16), (60000, 0, 60000, 60000, 60000, 0, 0, 0)),
        (torch.tensor([True, False]), (0.5, 0.5, 0.5, 0, 1, 1, 0, 0)),
        (torch.tensor([2**40, 2**40 + 2]), (2**40 + 1, 1, 2**40 + 1, 2**40, 2**40 + 2, 0, 0, 0)),
        (torch.tensor([3 + 4j, 0j]), (2.5, 2.5, 2.5, 0, 5, 1, 0, 0)),
        (torch.eye(2).to_sparse(), (0.5, 0.5, 0.5, 0, 1, 2, 0, 0)),
        (torch.tensor([[1.0, 2.0, 3.0]])[:, ::2].expand(4, 2), (2, 1, 2, 1, 3, 0, 0, 0)),
    ],
)
def test_stats_are_right_for_every_kind_of_tensor(values, expected):
    net = Returns(lambda: values)
    with capture(net, keep="stats") as seen:
        net()
    got = seen[""].stats[2:]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours != ours if theirs is None else ours == theirs  # nan is not equal to itself


def test_grad_stats_of_two_passes_are_refused():
    net = small()
    with capture(net, gradients=True, keep="stats") as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    with pytest.raises(NotCapturedError, match="2 backward passes"):
        _ = seen["0"].grad_stats


def test_sample_dtype_and_device_bound_what_is_kept():
    net = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True))
    x = torch.arange(12.0).reshape(3, 4)
    with capture(net, sample=1) as seen:
        net(x.clone())
    assert seen["0"].output.tolist() == [[4, 5, 6, 7]]
    assert seen["0"].output.untyped_storage().nbytes() == 16, "the rest of the batch is not kept"
    with capture(net, sample=slice(1, 3), dtype=torch.float16) as seen:
        net(-x)
    assert seen["0"].output.dtype == torch.float16
    assert seen["0"].output.tolist() == (-x[1:3]).tolist()
    with (
        pytest.raises(IndexError, match=r"sample=7 picks nothing of a tensor of shape \(3, 4\)"),
        capture(net, sample=7),
    ):
        net(x)
    assert len(census(net)) == 0
    with capture(Returns(lambda x: (x, torch.tensor(3), 5)), sample=0, dtype=torch.float64) as seen:
        seen._model(x)
    first, scalar, number = seen[""].output
    assert (first.dtype, scalar.dtype, number) == (torch.float64, torch.int64, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "everything"}, "give 'tensors', 'copies' or 'stats'"),
        ({"keep": "stats", "sample": 0}, "leave out sample"),
        ({"sample": -1}, "count samples from 0"),
    ],
)
def test_contradictory_options_are_refused_early(options, message):
    with pytest.raises(ValueError, match=message):
        capture(small(), **options)


def test_memory_is_flat_over_many_passes():
    import tracemalloc

    net = small()
    seen = capture(net, gradients=True, inputs=True)
    tensors = []
    tracemalloc.start()
    for turn in range(200):
        with seen:
            net(torch.tensor([[1.0, 3.0]])).sum().backward()
        if turn in (50, 199):
            gc.collect()
            tensors.append(
                (sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()), tracemalloc.get_traced_memory()[0])
            )
    tracemalloc.stop()
    assert tensors[0][0] == tensors[1][0]
    assert tensors[1][1] < tensors[0][1] + 20_000


def test_the_forecast_is_what_a_pass_keeps_and_computes_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(2, 1, 6, 6)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    rng, version = torch.get_rng_state(), x._version
    for options in ({}, {"gradients": True}, {"sample": 0}, {"dtype": torch.float16}, {"inputs": True}):
        forecast = capture(net, **options).estimate(x)
        assert torch.equal(torch.get_rng_state(), rng)
        assert x._version == version
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
        with capture(net, **options) as seen, torch.random.fork_rng():
            net(x).sum().backward()
        tensors = [call.output for call in seen.calls]
        tensors += [call.grad for call in seen.calls] if options.get("gradients") else []
        tensors += [call.args[0] for call in seen.calls] if options.get("inputs") else []
        assert forecast == sum(tensor.numel() * tensor.element_size() for tensor in tensors), options
        net.load_state_dict(state)
    assert capture(net, keep="stats").estimate(x) == 0
    assert len(census(net)) == 0


def test_a_forecast_that_needs_values_is_refused_in_words():
    net = Returns(lambda x: x if x.sum().item() > 0 else -x)
    with pytest.raises(RuntimeError, match=r"its path may depend on values\. Capture with keep='stats'"):
        capture(net).estimate(torch.ones(2))
    assert len(census(net)) == 0


def test_max_bytes_refuses_naming_the_layer_and_ways_out():
    net = nn.Sequential(nn.Linear(1, 100), nn.Linear(100, 100))
    with (
        pytest.raises(MemoryError, match=r"max_bytes=500; reached at call 1\. .*keep='stats'"),
        capture(net, max_bytes=500),
    ):
        net(torch.ones(1, 1))
    assert len(census(net)) == 0
    with capture(net, max_bytes=800) as seen:
        net(torch.ones(1, 1))
    assert len(seen) == 2


def test_other_containers_are_followed_too():
    class Slotted:
        __slots__ = ("inner", "unset")

        def __init__(self, inner):
            self.inner = inner

    made = []

    def forward(x):
        y = x + 1
        made.append((deque([y], maxlen=3), Slotted(y), y.numpy().copy()))
        return made[0]

    net = Returns(forward)
    with torch.no_grad(), capture(net) as seen:
        queue, _, array = net(torch.zeros(2))
        queue[0].zero_()
        array[:] = 9
        queue.append(5)
    kept_queue, kept_slotted, kept_array = seen[""].output
    assert kept_queue[0].tolist() == kept_slotted.inner.tolist() == kept_array.tolist() == [1, 1]
    assert (len(kept_queue), kept_queue.maxlen) == (1, 3)


def test_copies_at_once_where_copy_on_write_cannot_know():
    """A NumPy window made before the layer returned, and an output that is resized later."""
    windows = []

    def with_window(x):
        y = x + 1
        windows.append(y.numpy())
        return y

    net = Returns(with_window)
    with torch.no_grad(), capture(net, keep="copies") as seen:
        net(torch.zeros(2))
        windows[0][:] = 7
    assert seen[""].output.tolist() == [1, 1]

    linear = nn.Linear(1, 2)

    def resized(x):
        y = linear(x)
        y.resize_(4, 4).zero_()
        return y

    net = Returns(resized)
    net.linear = linear
    with torch.no_grad(), capture(net, "linear", keep="copies") as seen:
        net(torch.ones(1, 1))
    assert seen["linear"].output.shape == (1, 2)
    with torch.no_grad(), capture(net, "linear") as seen:
        net(torch.ones(1, 1))  # what was overwritten in the last pass is copied at once
    assert seen["linear"].output.shape == (1, 2)
    net = Returns(resized)  # of which nothing is known
    net.linear = linear
    with torch.no_grad(), pytest.raises(RuntimeError) as caught, capture(net, "linear"):
        net(torch.ones(1, 1))
    assert any("keep='copies'" in note for note in caught.value.__notes__)
    assert len(census(net)) == 0


@pytest.mark.parametrize("keep", ["tensors", "copies", "stats"])
def test_a_lazy_layer_may_get_its_parameters_inside_the_block(keep: Literal["tensors", "copies", "stats"]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3), nn.ReLU(inplace=True))
    with capture(model, keep=keep) as seen:
        result = model(torch.ones(2, 4))
    assert seen.order == ["0", "1", "2"]
    if keep != "stats":
        assert torch.equal(seen["1"].output.relu(), result)
