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
            return Wrong("with your hook, the model returns something else; the hook should only store")
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
        return Wrong("the block was called, but your list has nothing new; append to the list `store`")
    if len(new) > 1:
        return Wrong(f"the block was called once, and you appended {len(new)} entries")
    entry, given, returned = new[0], parts["given"], parts["returned"]
    if not isinstance(entry, Tensor):
        return Wrong(f"you appended {type(entry).__name__}; append the tensor")
    added = returned - given
    if entry.shape == added.shape and torch.allclose(entry.to(added.dtype), added, atol=1e-4):
        return None
    reasons = {
        "that is the stream that the block returned, the sum up to that point": returned,
        "that is the input of the block": given,
        "that has the wrong sign: the block adds its output minus its input": -added,
        "that is what `attn` adds; the block has an `mlp`, too": parts["attn"],
        "that is what `mlp` adds; the block has an `attn`, too": parts["mlp"],
        "`output` is a tensor, so `output[0]` is its first text; subtract from all texts": returned[:1] - given,
    }
    for reason, tensor in reasons.items():
        if entry.shape == tensor.shape and torch.allclose(entry.to(tensor.dtype), tensor, atol=1e-4):
            return Wrong(reason)
    if entry.shape == added.shape[1:]:
        return Wrong("`output[0]` is the first text of a tensor; keep all texts")
    if entry.shape != added.shape:
        return Wrong(f"you kept a tensor of shape {tuple(entry.shape)}; it should be {tuple(added.shape)}")
    return Wrong("what you kept is not what the block adds, which is its output minus its input")


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
            no_args = "and then `args` is (), and `args[0]` fails, also as a default in `kwargs.get`"
            where = no_args if isinstance(error, IndexError) else "and then it is not in `kwargs`"
            return Wrong(f"`hidden_states` was {way}, {where}; your hook raised {type(error).__name__}: {error}")
        except RuntimeError as error:
            return Wrong(f"torch says: {error}")
        if wrong := _wrong_count(counts[done:], x, way):
            return wrong
        if not torch.equal(output, module.forward(*args, **kwargs)):
            return Wrong("with your hook, the module returns something else; the hook should only count")
    if not module.training:
        return Wrong("the module was in `train()`, but now it is in `eval()`; the hook should only count")
    if "forward pre" not in registered:
        return Wrong("the counts are right, but you registered no pre-hook; use one")
    return None


def _wrong_count(new: list[int], x: Tensor, way: str) -> Wrong | None:
    texts, tokens, width = x.shape
    if new == [tokens]:
        return None
    what = f"`hidden_states` of shape {tuple(x.shape)} was {way}"
    if not new:
        return Wrong(f"{what}, but your list has nothing new; append to the list `counts`")
    reasons = {texts: "that is how many texts there are", width: "that is the width of a row"}
    if "before" in way:
        by_name = "look for the name, not for the first keyword argument"
        reasons = {
            1: f"that comes from the mask: {by_name}",
            tokens + 9: f"that comes from the other stream: {by_name}",
        }
    said = ", ".join(map(str, new))
    return Wrong(
        f"{what}, and you stored {said}: {reasons.get(new[0], f'append its number of tokens, {tokens}, once')}"
    )


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
        return Wrong(f"your function returned {result!r}; return a list with one token for each block")
    if not all(
        isinstance(token, int | np.integer) or (isinstance(token, Tensor) and token.dim() == 0) for token in result
    ):
        return Wrong(f"your list begins with {result[0]!r}; each entry is a token, a number")
    found, expected = [int(token) for token in result], read["right"]
    if found == expected:
        return None
    for reason, others in read.items():
        if found == others:
            return Wrong(f"you have {found}, not {expected}: {reason}")
    words = model.head.out_features
    if any(not 0 <= token < words for token in found):
        return Wrong(
            f"you have {found}, but there are only {words} tokens; use `argmax` over the scores of one position"
        )
    if len(found) != len(expected):
        return Wrong(f"the model has {len(expected)} blocks, but your list has {len(found)} entries")
    return Wrong(f"you have {found}, but the lens reads {expected}")


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
            "you read the streams without `norm`, which the model applies before `head`": top(returned, nn.Identity()),
            "you read at the first position; the last one decides the next word": top(returned, position=0),
            "you read the input of each block; read its output": top(given),
            "you read what each block adds; read the whole stream": top(
                [after - before for after, before in zip(returned, given, strict=True)]
            ),
        }
