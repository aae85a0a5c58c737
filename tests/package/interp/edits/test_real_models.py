"""What the toys of the other files show, on models of torchvision and of transformers: verbs, errors, modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from hookscope import NotEditedError, at, capture, census, edit
from hookscope.interp.edits import Edit
from tests.shared.language import IDS, gpt2, small_vit

Hand = Callable[[Tensor, Tensor], Tensor]  # of an output, and of the clean one, makes the new one


@cache
def resnet() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval()


@cache
def language() -> nn.Module:
    return gpt2()


IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
OTHERS = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor, Tensor, str, str]] = {
    "resnet18": (resnet, IMAGES, OTHERS, "layer2.0", "layer4.1.bn2"),
    "gpt2": (language, IDS, IDS.flip(1), "transformer.h.1.mlp", "transformer.ln_f"),
}


def run(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    found: Tensor = output if isinstance(output, Tensor) else output.logits
    return found


def prepared(model: nn.Module, verb: str, *args: Any, **options: Any) -> Edit:
    e = edit(model)
    getattr(e, verb)(*args, **options)
    return e


def by_hand(model: nn.Module, layer: str, new: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: new(output.clone()))
    try:
        return run(model, x)
    finally:
        handle.remove()


def written(index: Any, value: Any) -> Hand:
    def new(output: Tensor, clean: Tensor) -> Tensor:
        output[index] = clean[index] if value is None else value
        return output

    return new


VERBS: dict[str, tuple[Callable[[Any, str, Tensor], Any], Hand]] = {
    "set": (lambda e, name, clean: e.set(name, 0.25, at[:, 1]), written((slice(None), 1), 0.25)),
    "add": (lambda e, name, clean: e.add(name, 2.0, at[0]), lambda y, clean: torch.stack([y[0] + 2.0, *y[1:]])),
    "scale": (lambda e, name, clean: e.scale(name, -0.5), lambda y, clean: y * -0.5),
    "map": (lambda e, name, clean: e.map(name, torch.tanh), lambda y, clean: y.tanh()),
    "swap": (lambda e, name, clean: e.swap(name, clean, at[:, 1]), written((slice(None), 1), None)),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_verb_does_what_a_hook_does_and_nothing_stays(kind: str, verb: str, mode: Callable[[], Any]) -> None:
    make, x, other, layer, _ = MODELS[kind]
    model, (edited, new) = make(), VERBS[verb]
    with mode():
        plain = run(model, x)
        with capture(model, layer) as clean:
            run(model, other)
        kept = clean[layer].output.clone()
        with edit(model) as e:
            edited(e, layer, clean if verb == "swap" else kept)
            changed = run(model, x)
        assert torch.equal(changed, by_hand(model, layer, lambda y: new(y, kept), x))
        assert not torch.equal(changed, plain)
        assert torch.equal(run(model, x), plain)
    assert len(census(model)) == 0
    assert e.rows[0]["calls changed"] == 1


@pytest.mark.parametrize("kind", MODELS)
def test_a_frozen_layer_gives_what_it_gave_first(kind: str) -> None:
    make, x, other, layer, _ = MODELS[kind]
    model = make()
    with torch.no_grad():
        with capture(model, layer) as clean:
            run(model, other)
        with prepared(model, "freeze", layer):
            run(model, other)
            frozen = run(model, x)
        assert torch.equal(frozen, by_hand(model, layer, lambda y: clean[layer].output, x))


@pytest.mark.parametrize("kind", MODELS)
def test_what_never_came_is_said(kind: str) -> None:
    make, x, _, layer, _ = MODELS[kind]
    model = make()
    with torch.no_grad():
        with pytest.raises(NotEditedError, match="call"), prepared(model, "scale", layer, 2, calls={3}):
            run(model, x)
        with pytest.raises(NotEditedError, match="part"), prepared(model, "scale", layer, 2, part=1):
            run(model, x)
        with pytest.raises(NotEditedError, match="not called"), prepared(model, "scale", layer, 2):
            pass
    assert len(census(model)) == 0


def test_a_layer_whose_weight_alone_is_used_is_said() -> None:
    model = small_vit()
    name = next(name for name, _ in model.named_modules() if name.endswith("self_attention.out_proj"))
    with pytest.raises(NotEditedError, match="weight"), torch.no_grad(), prepared(model, "scale", name, 0.0):
        model(torch.randn(1, 3, 32, 32))
    assert len(census(model)) == 0


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda y: None, "None"), (lambda y: y[:1], "shape"), (lambda y: y.double(), "float64"), (lambda y: 1.0, "float")],
)
def test_what_a_function_may_not_return(kind: str, function: Callable[[Tensor], Any], said: str) -> None:
    make, x, _, layer, _ = MODELS[kind]
    model = make()
    with (
        pytest.raises((TypeError, ValueError), match=said) as error,
        torch.no_grad(),
        prepared(model, "map", layer, function),
    ):
        run(model, x)
    assert layer in str(error.value)
    assert len(census(model)) == 0


@pytest.mark.parametrize("kind", MODELS)
def test_a_direction_can_be_trained(kind: str) -> None:
    make, x, _, layer, last = MODELS[kind]
    model, grads = make(), []
    for way in ("edit", "hook"):
        v = torch.zeros((), requires_grad=True)
        model.zero_grad()
        if way == "edit":
            with edit(model) as e, capture(model, last) as seen:
                e.add(layer, v)
                output = run(model, x)
            assert bool(seen[last].output.isfinite().all())
        else:
            output = by_hand(model, layer, lambda y, v=v: y + v, x)
        output.square().mean().backward()
        grads.append([v.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    model.zero_grad()
    assert grads[0][0] is not None
    assert float(grads[0][0]) != 0
    assert len(grads[0]) == len(grads[1])
    assert all(map(torch.equal, *grads))


def test_gradients_are_those_of_a_hook_also_where_a_checkpoint_runs_it_again() -> None:
    model, found = gpt2().train(), []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for again in (False, True):
        if again:
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        model.zero_grad()
        with edit(model) as e:
            e.scale("transformer.h.0.mlp", 0.5)
            run(model, IDS).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert e.rows[0]["calls seen"] == 1
    assert all(map(torch.equal, *found))


def test_under_autocast_and_torch_func() -> None:
    model, weights = resnet(), dict(resnet().named_parameters())
    state = weights | dict(model.named_buffers())
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        with edit(model) as e:
            e.scale("layer2.0", 0.5)
            edited = run(model, IMAGES)
        assert torch.equal(edited, by_hand(model, "layer2.0", lambda y: y * 0.5, IMAGES))

    def loss(x: Tensor) -> Tensor:
        return functional_call(model, state, (x,)).square().mean()

    with edit(model) as e:
        e.scale("layer2.0", 0.5)
        one = grad(loss)(IMAGES)
    handle = model.get_submodule("layer2.0").register_forward_hook(lambda module, args, output: output * 0.5)
    other = grad(loss)(IMAGES)
    handle.remove()
    assert torch.equal(one, other)


def test_hidden_states_of_transformers_are_those_before_the_edit_once_its_hooks_are_on() -> None:
    model, tokens = gpt2(), torch.arange(6)[None]
    with torch.no_grad():
        plain = model(tokens, output_hidden_states=True)
        with edit(model) as e:
            e.scale("transformer.h.0", 2.0)
            edited = model(tokens, output_hidden_states=True)
    assert torch.equal(edited.hidden_states[1], plain.hidden_states[1])
    assert not torch.allclose(edited.logits, plain.logits)
