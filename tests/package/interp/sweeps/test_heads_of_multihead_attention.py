"""Heads of `nn.MultiheadAttention`, which no layer is called with, are swept like those of any other attention."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from hookscope import NotEditedError, census, edit
from hookscope.interp.sweeps import Cell
from tests.package.interp.sweeps.test_one_cell import same as same_cells
from tests.shared.awkward_models import Net
from tests.shared.language_models import small_vit
from tests.shared.sweep_helpers import sweep

IMAGE, OTHER = torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXT, TEXT_TOO = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(1))


def looks(batch_first: bool) -> nn.Module:
    """Build a model with two calls of one layer, and a projection that another kind of attention calls."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        for _ in range(2):
            given = x if batch_first else x.transpose(0, 1)
            found, _ = self.attn(given, given, given)
            x = x + (found if batch_first else found.transpose(0, 1))
        return x + self.own(x)

    torch.manual_seed(0)
    attn = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    own = Net(lambda self, x: self.o_proj(x.tanh()), num_heads=4, o_proj=nn.Linear(8, 8))
    return Net(run, attn=attn, own=own).eval()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def logit(output: Tensor) -> Tensor:
    return output.flatten(1)[0, 1]


SWEEPS: dict[str, tuple[Any, Tensor, Tensor, list[str]]] = {
    "vit": (small_vit, IMAGE, OTHER, [f"encoder.layers.encoder_layer_{i}.self_attention" for i in (1, 0)]),
    "fused encoder": (encoder, TEXT, TEXT_TOO, ["layers.*.self_attn"]),
    "its projection": (encoder, TEXT, TEXT_TOO, ["layers.1.self_attn.out_proj"]),
    "calls": (lambda: looks(True), TEXT, TEXT_TOO, ["attn#2", "attn#1"]),
    "tokens first": (lambda: looks(False), TEXT, TEXT_TOO, ["attn#1", "attn#2"]),
    "two kinds": (lambda: looks(True), TEXT, TEXT_TOO, ["own", "attn#2"]),
}


@pytest.mark.parametrize("source", ["run", "zero", "mean", "mean of others"])
@pytest.mark.parametrize("name", SWEEPS)
def test_each_cell_is_what_an_edit_gives(name: str, source: str) -> None:
    make, x, others, layers = SWEEPS[name]
    net = make()
    given: dict[str, Any] = {"run": others, "mean of others": ("mean", others)}.get(source, source)
    if name == "tokens first" and "mean" in source:
        with pytest.raises(ValueError, match="its first axis does not count samples"):
            sweep(net, x, layers, given, heads=[1, 0], metric=logit, progress=False)
        assert not census(net)
        return
    found = sweep(net, x, layers, given, heads=[1, 0], metric=logit, check=1, progress=False)
    assert not census(net)
    assert not any("forward" in vars(module) for module in net.modules())
    assert len(set(found.values.flatten().tolist())) == found.values.numel()
    assert bool(found.batches) == (name != "tokens first")
    same_cells(net, found, [(layer, head) for layer in found.layers for head in (0, 1)], fused=True)


def test_a_head_set_to_zero_is_one_whose_columns_in_the_projection_are_zero() -> None:
    net, x, _, layers = small_vit(), *SWEEPS["vit"][1:]
    found = sweep(net, x, layers, "zero", heads=range(2), metric=logit, check=1, progress=False)
    for row, name in enumerate(layers):
        weight = net.get_submodule(name).out_proj.weight
        for head in range(2):
            before = weight.detach().clone()
            with torch.no_grad():
                weight[:, 8 * head : 8 * head + 8] = 0
                assert float(found.values[row, head]) == pytest.approx(float(logit(net(x))), rel=1e-4)
                weight.copy_(before)


@pytest.mark.slow
def test_full_size() -> None:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    net, x = vit_b_16().eval(), torch.randn(1, 3, 224, 224)
    nn.init.normal_(net.heads.head.weight)
    name = "encoder.layers.encoder_layer_10.self_attention"
    found = sweep(net, x, name, "zero", heads=range(12), metric=lambda y: y[0, 7], check=1, progress=False)
    with torch.no_grad(), edit(net) as e:
        e.set(name, 0, heads=5)
        assert float(net(x)[0, 7]) == pytest.approx(float(found.values[0, 5]), rel=1e-4)
    assert found.batches


def test_an_attention_that_computes_its_heads_elsewhere_is_named() -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
            return query * 2, None

    net = looks(True)
    net.attn = Own(8, 2, batch_first=True)
    with pytest.raises(
        NotEditedError, match=r"'attn#1'.*called 2 times, but it did not call torch's F\.multi_head_attention_forward"
    ):
        sweep(net, TEXT, "attn#1", "zero", heads=[0], metric=logit, progress=False)
    with pytest.raises(NotEditedError, match=r"'attn#3': the layer was called 2 times \(in"):
        sweep(looks(True), TEXT, "attn#3", "zero", heads=[0], metric=logit, progress=False)
    assert not census(net)


@pytest.mark.parametrize("when", [1, 4, 9])
def test_an_interrupt_inside_of_attention_leaves_nothing(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, softmax, calls = looks(True), F.softmax, []

    def interrupted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return softmax(*args, **kwargs)

    monkeypatch.setattr(F, "softmax", interrupted)
    with suppress(KeyboardInterrupt):  # a sweep that has begun keeps what there is
        sweep(net, TEXT, ["attn#1", "attn#2"], "zero", heads=[0, 1], metric=logit, check=1, progress=False)
    assert len(calls) >= when
    assert not census(net)
    assert not any("forward" in vars(module) for module in net.modules())
    assert not _get_current_function_mode_stack()


@pytest.mark.filterwarnings("error:hookscope")
def test_a_cell_that_is_run_warns_of_nothing() -> None:
    make, x, others, layers = SWEEPS["fused encoder"]
    net = make()
    found = sweep(net, x, layers, others, heads=[0, 1], metric=logit, progress=False)
    assert Cell(found, found.layers[0], 1).run().value == pytest.approx(float(found.values[0, 1]), rel=1e-4)
    assert not census(net)


def test_a_projection_of_which_only_the_weight_is_used_is_named() -> None:
    from torchvision.models import swin_t

    with pytest.raises(
        NotEditedError, match=r"'features\.1\.0\.attn\.proj' was not called: .* a function that uses its weight"
    ):
        sweep(swin_t().eval(), IMAGE, "features.1.0.attn", "zero", heads=[0], metric=logit, progress=False)
