"""Leaving the block raises where an edit did not happen, and says which, what was seen, and why that may be."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from hookscope import NotEditedError, at, capture, census, edit
from tests.shared.awkward_models import Net

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def two() -> nn.Module:
    return Net(lambda self, x: self.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4), several=nn.ModuleList([nn.ReLU()]))


def test_nothing_is_called_at_all_or_the_models_forward_directly() -> None:
    net = two()
    for layer, run, why in (
        ("a", lambda: None, "and neither was the model. Call model(...) inside the block"),
        ("", lambda: net.forward(X), "Hooks do not run with model.forward(...)"),
    ):
        e = edit(net)
        e.scale(layer, 2.0)
        with pytest.raises(NotEditedError) as caught, e:
            run()
        assert not len(census(net))
        (only,) = caught.value.reasons
        assert only.startswith(f"edit 1, scale 2.0: layer {layer!r} was not called")
        assert why in only
        assert str(caught.value) == f"{only}. See https://hookscope.github.io/hookscope/errors/not_edited.html"


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_compiled_or_traced_itself() -> None:
    torch._dynamo.reset()  # what earlier tests made it skip would run as Python here, and be edited
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(net, backend="eager")
    compiled(X)
    with torch.compiler.set_stance("force_eager"), edit(net) as e:
        e.set("1", 7)
        assert (compiled(X) == 7).all(), "the way out that the message names"
    with pytest.raises(
        ValueError, match=r"the model is compiled, so torch can ignore hooks that are added now. Edit the model"
    ):
        edit(compiled)
    with pytest.raises(ValueError, match=r"TorchScript, which runs only some hooks. Edit the original"):
        edit(torch.jit.trace(net, X)).set("0", 1)


def test_a_model_compiled_inside_the_block_is_edited_there_and_no_longer_afterwards() -> None:
    torch._dynamo.reset()  # code for another model of these layers would be taken for this one, too
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(net, backend="eager")
    with edit(net) as e:
        e.set("0", 5.0, calls={2})
        first, second = compiled(X), compiled(X)
    assert not (first == 5).all()
    assert (second == 5).all()
    torch.testing.assert_close(compiled(X), net(X))


@pytest.mark.parametrize("before", ["never", "once"])
def test_an_edit_that_is_written_after_the_pass(before: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def late() -> None:
        with edit(net) as e:
            if before == "once":
                e.scale("0", 3)
            net(X)
            e.scale("0", 2)

    with pytest.raises(NotEditedError, match="the model ran only before this edit was written"):
        late()
    with edit(net) as e:
        net(X)
        e.scale("0", 2)
        net(X)
    assert e.rows[0]["calls changed"] == 1


def test_each_layer_of_a_glob_has_to_be_called() -> None:
    net = two()
    e = edit(net)
    e.scale("*", 2.0)
    with pytest.raises(NotEditedError, match="layer 'b' was not called") as caught, e:
        net(X)
    assert len(caught.value.reasons) == 1, "a glob leaves out what is never called anyway"


def test_several_edits_that_did_not_happen_are_all_named() -> None:
    net = two()
    e = edit(net)
    e.scale("a", 2.0)
    e.scale("b", 2.0)
    e.set("a", 0, calls={9})
    with pytest.raises(NotEditedError) as caught, e:
        net(X)
    assert re.findall(r"edit (\d)", str(caught.value)) == ["2", "3"]


def test_a_layer_whose_parent_did_not_run_was_not_reached() -> None:
    net = nn.ModuleDict({"first": nn.Linear(4, 4), "encoder": nn.TransformerEncoderLayer(4, 1, 8)})
    net.forward = lambda x: net["first"](x)
    e = edit(net)
    e.scale("encoder.linear1", 2.0)
    with pytest.raises(NotEditedError, match=r"this pass did not reach it, or"), e:
        net(torch.ones(1, 2, 4))


def test_a_layer_that_was_replaced_since() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    e = edit(net)
    e.scale("1", 2.0)
    net[1] = nn.ReLU()
    e.add("0", 1.0, calls=1)
    e.add(nn.ReLU, 1.0)
    said = r"^edit 1, scale 2\.0: layer '1' was not called: it was removed from the model or replaced after the edit"
    with pytest.raises(NotEditedError, match=said) as caught, e:
        net(X)
    assert len(caught.value.reasons) == 1


@pytest.mark.parametrize("write", ["heads", "index", "samples", "mean"])
def test_edits_of_padded_samples_in_an_encoder_name_the_way_out(write: str) -> None:
    torch.manual_seed(0)
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, padded = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padded[1, 3:] = True
    e = edit(net)
    match write:
        case "heads":
            e.scale("layers.0.self_attn", 2.0, heads=0)
        case "index":
            e.set("layers.0", 0.0, at[:, 1])
        case "samples":
            e.set("layers.0", 0.0, samples=[1])
        case "mean":
            e.mean("layers.0")
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"edit 1 .* enable_nested_tensor=False"), e:
        net(x, src_key_padding_mask=padded)
    net.use_nested_tensor = False  # the way out
    with torch.no_grad(), e:
        net(x, src_key_padding_mask=padded)
    assert e.rows[0]["calls changed"] == 1


def test_an_edit_of_a_layer_after_a_capture_has_ended_the_pass() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    e = edit(net)
    e.set("2", 0.0)
    why = r"layer '2' was not called.*\(capture\(\.\.\., stop=True\) ended the pass\)"
    with pytest.raises(NotEditedError, match=why), capture(net, "1", stop=True), e:
        net(X)
    with capture(net, "1", stop=True) as seen, edit(net) as e:
        e.set("0", 3.0)
        net(X)
    assert seen["1"].output.eq(3).all()
    assert seen.stopped == "1"
    assert not len(census(net))
