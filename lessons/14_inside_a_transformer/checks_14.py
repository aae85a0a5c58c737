"""Exercises of chapter 14: what a block adds, tokens passed by name, a logit lens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope import capture
from hookscope.samples import StoryLM
from hookscope_course.practice import Wrong
from hookscope_course.practice.check_helpers import (
    BreakingLayer,
    add_foreign_hooks,
    record_registrations,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, runs_model

# -- what a block adds ----------------------------------------------------------------------------------------------


@adds_hook((8, 2, 1, torch.float32), (12, 3, 1, torch.float64), right="the list is right")
def check_q1(
    keep_added: Callable[[nn.Module, list[Tensor]], Any], width: int, blocks: int, asked: int, dtype: torch.dtype
) -> Wrong | None:
    model: Any = StoryLM(width=width, heads=2, blocks=blocks).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    texts = [torch.randint(model.head.out_features, (2, tokens)) for tokens in (3, 5)]
    before = [_seen_at(model, asked, text) for text in texts]
    add_foreign_hooks(model)
    store: list[Tensor] = []
    keep_added(model.blocks[asked], store)
    for done, (text, parts) in enumerate(zip(texts, before, strict=True)):
        with torch.no_grad():
            logits = model(text)
        if wrong := _wrong_entry(store[done:], parts):
            return wrong
        if not torch.equal(logits, parts["logits"]):
            return Wrong("your hook changed the output of the model; it should only store")
    return None


def _seen_at(model: Any, asked: int, text: Tensor) -> dict[str, Tensor]:
    here = f"blocks.{asked}"
    with torch.no_grad(), capture(model, here, f"{here}.attn", f"{here}.mlp", inputs=True) as seen:
        logits = model(text)
    names = {"attn": f"{here}.attn", "mlp": f"{here}.mlp", "returned": here}
    found = {name: seen[path].output for name, path in names.items()}
    return {"logits": logits, "given": seen[here].args[0], **found}


def _wrong_entry(new: list[Any], parts: dict[str, Tensor]) -> Wrong | None:
    if not new:
        return Wrong("the block was called, but your hook did not append anything; it should append to `store`")
    if len(new) > 1:
        return Wrong(f"the block was called once, but you appended {len(new)} entries; it should be one")
    entry, given, returned = new[0], parts["given"], parts["returned"]
    if not isinstance(entry, Tensor):
        return Wrong(f"you appended {type(entry).__name__}; it should be a tensor")
    added = returned - given
    if entry.shape == added.shape and torch.allclose(entry.to(added.dtype), added, atol=1e-4):
        return None
    reasons = {
        "you stored the output of the block; it should be the output minus the input": returned,
        "you stored the input of the block; it should be the output minus the input": given,
        "you stored the input minus the output; it should be the output minus the input": -added,
        "you stored the output of `attn`; it should also include the output of `mlp`": parts["attn"],
        "you stored the output of `mlp`; it should also include the output of `attn`": parts["mlp"],
        "you used `output[0]`, which is only the first text; use the whole tensor `output`": returned[:1] - given,
    }
    for reason, tensor in reasons.items():
        if entry.shape == tensor.shape and torch.allclose(entry.to(tensor.dtype), tensor, atol=1e-4):
            return Wrong(reason)
    if entry.shape == added.shape[1:]:
        return Wrong("you stored only one text: `output[0]` is the first text; store all texts")
    if entry.shape != added.shape:
        return Wrong(f"you stored a tensor of shape {tuple(entry.shape)}; it should be {tuple(added.shape)}")
    return Wrong("you stored the wrong values; they should be the output of the block minus its input")


# -- tokens, passed by name or not --------------------------------------------------------------------------------


class _ReadsHiddenStates(nn.Module):
    """Takes `hidden_states` as an attention does, and returns them times a weight."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=dtype))

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, encoder_hidden_states: Tensor | None = None
    ) -> Tensor:
        result = hidden_states * self.weight
        if encoder_hidden_states is not None:
            result = result + encoder_hidden_states.sum()
        return result if mask is None else result + mask.sum()


@adds_hook((4, torch.float32), (6, torch.float64), right="the counts are right")
def check_q2(count_tokens: Callable[[nn.Module, list[int]], Any], width: int, dtype: torch.dtype) -> Wrong | None:
    module = _ReadsHiddenStates(width, dtype)
    counts: list[int] = []
    add_foreign_hooks(module)
    with record_registrations() as registered:
        count_tokens(module, counts)
    lengths = (torch.randperm(7)[:5] + 3).tolist()  # from 3 on, so that no length is a number of texts
    ways = (
        "passed by name",
        "passed as the first argument",
        "passed with a mask before it",
        "passed with a mask after it",
        "passed with another stream before it",
    )
    for done, (tokens, way) in enumerate(zip(lengths, ways, strict=True)):
        x, mask = torch.rand(2, tokens, width, dtype=dtype), torch.rand(2, 1, tokens + 20, tokens + 20, dtype=dtype)
        other = torch.rand(2, tokens + 9, width, dtype=dtype)
        calls: dict[str, tuple[tuple[Tensor, ...], dict[str, Tensor]]] = {
            ways[0]: ((), {"hidden_states": x}),
            ways[1]: ((x,), {}),
            ways[2]: ((), {"mask": mask, "hidden_states": x}),
            ways[3]: ((x, mask), {}),
            ways[4]: ((), {"encoder_hidden_states": other, "hidden_states": x}),
        }
        args, kwargs = calls[way]
        try:
            output = module(*args, **kwargs)
        except (IndexError, KeyError) as error:
            no_args = "so `args` is (), and `args[0]` fails, even as the default in `kwargs.get`"
            where = no_args if isinstance(error, IndexError) else "so it is not in `kwargs`"
            return Wrong(f"`hidden_states` was {way}, {where}; your hook raised {type(error).__name__}: {error}")
        except RuntimeError as error:
            return Wrong(f"torch says: {error}")
        if wrong := _wrong_count(counts[done:], x, way):
            return wrong
        if not torch.equal(output, module.forward(*args, **kwargs)):
            return Wrong("your hook changed the output of the module; it should only count")
    if not module.training:
        return Wrong("the module was in `train()`, but now it is in `eval()`; your hook should only count")
    if "forward pre" not in registered:
        return Wrong("the counts are right, but you did not register a pre-hook; it should be a pre-hook")
    return None


def _wrong_count(new: list[int], x: Tensor, way: str) -> Wrong | None:
    texts, tokens, width = x.shape
    if new == [tokens]:
        return None
    what = f"`hidden_states` of shape {tuple(x.shape)} was {way}"
    if not new:
        return Wrong(f"{what}, but your hook did not append anything; it should append to `counts`")
    should = f"it should be the number of tokens, {tokens}"
    reasons = {texts: f"that is the number of texts; {should}", width: f"that is the width of a row; {should}"}
    if "before" in way:
        by_name = "pick the argument by its name; it is not always the first keyword argument"
        reasons = {
            1: f"that is from the mask; {by_name}",
            tokens + 9: f"that is from the other stream; {by_name}",
        }
    said = ", ".join(map(str, new))
    return Wrong(f"{what}, and you stored {said}: {reasons.get(new[0], f'{should}, once')}")


# -- a logit lens ---------------------------------------------------------------------------------------------------


def _break_block(first_guesses: Callable[..., object]) -> tuple[nn.Module, Callable[[], object]]:
    model, text, _ = _lens_case(8, 2, 3, torch.float32)
    model.blocks[1] = BreakingLayer()
    return model, lambda: first_guesses(model, text)


@runs_model((8, 3, 4, torch.float32), (12, 4, 7, torch.float64), broken=_break_block, comes_off=True)
def check_q3(
    first_guesses: Callable[[nn.Module, Tensor], object], width: int, blocks: int, tokens: int, dtype: torch.dtype
) -> Wrong | None:
    model, text, read = _lens_case(width, blocks, tokens, dtype)
    result = first_guesses(add_foreign_hooks(model), text)
    if left := find_left_hooks(model):
        return left
    if isinstance(result, Tensor) and result.dim() == 1:
        result = result.tolist()
    if not isinstance(result, list | tuple):
        return Wrong(f"your function returned {result!r}; it should be a list with one token for each block")
    if not all(
        isinstance(token, int | np.integer) or (isinstance(token, Tensor) and token.dim() == 0) for token in result
    ):
        return Wrong(f"your list begins with {result[0]!r}; each entry should be a token, which is an integer")
    found, expected = [int(token) for token in result], read["right"]
    if found == expected:
        return None
    for reason, others in read.items():
        if found == others:
            return Wrong(f"you returned {found}, but it should be {expected}: {reason}")
    words = model.head.out_features
    if any(not 0 <= token < words for token in found):
        return Wrong(
            f"you returned {found}, but there are only {words} tokens; use `argmax` over the scores of one position"
        )
    if len(found) != len(expected):
        return Wrong(f"your list has {len(found)} entries; it should have one for each of the {len(expected)} blocks")
    return Wrong(f"you returned {found}, but it should be {expected}")


def _lens_case(width: int, blocks: int, tokens: int, dtype: torch.dtype) -> tuple[Any, Tensor, dict[str, list[int]]]:
    """A model with random weights, a text, and what lenses right and wrong read there, no two of them the same."""
    while True:
        model = StoryLM(width=width, heads=2, blocks=blocks).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        text = torch.randint(model.head.out_features, (1, tokens))
        read = _lenses(model, text)
        if len({tuple(each) for each in read.values()}) == len(read):
            return model, text, read


def _lenses(model: Any, text: Tensor) -> dict[str, list[int]]:
    names = [f"blocks.{number}" for number in range(len(model.blocks))]
    with torch.no_grad():
        with capture(model, *names, inputs=True) as seen:
            model(text)
        returned = [seen[name].output for name in names]
        given = [seen[name].args[0] for name in names]

        def top(streams: list[Tensor], norm: Any = model.norm, position: int = -1) -> list[int]:
            return [int(model.head(norm(stream))[0, position].argmax()) for stream in streams]

        return {
            "right": top(returned),
            "you left out `norm`, which the model applies before `head`": top(returned, nn.Identity()),
            "you used the first position; use the last one, which predicts the next word": top(returned, position=0),
            "you used the input of each block; use its output": top(given),
            "you used the output of each block minus its input; use the whole output": top(
                [after - before for after, before in zip(returned, given, strict=True)]
            ),
        }
