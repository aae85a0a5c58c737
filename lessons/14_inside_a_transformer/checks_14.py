"""Exercises of chapter 14: an index of hidden states, tokens passed by name, last rows of a stream, a logit lens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope import capture
from hookscope.samples import StoryLM
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.probing import (
    CALLS_NOTHING,
    SWALLOWED,
    Breaks,
    hooks_are,
    left_on,
    registrations,
    swallows,
    with_others,
)

_LAYERS, _ASKED = 12, 4


_GONE = "a hook that was on the model before is gone; take off your own, and no other"


def _hooks_on(model: nn.Module) -> int:
    return left_on(model)


def _somebody_elses(module: nn.Module, args: object, output: object) -> None:
    """Stand on a model as a hook that is not the answer's."""


def check_q1(index: object) -> Wrong | None:
    if isinstance(index, Tensor | np.generic) and index.ndim == 0:
        index = index.item()
    if isinstance(index, float) and index.is_integer():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        return Wrong(f"give the index alone, a number, not a {index.__class__.__name__}")
    hidden, given, returned = _hidden_states()
    if not -len(hidden) <= index < len(hidden):
        return Wrong(f"there is no entry {index}: {_LAYERS} layers make {len(hidden)} entries, 0 to {len(hidden) - 1}")
    if torch.equal(hidden[index], returned[_ASKED]):
        return None
    place = index % len(hidden)
    if place == 0:
        return Wrong(f"entry {index} is the embedding, before any layer")
    if place == len(hidden) - 1:
        return Wrong(f"entry {index} is the last one, which has gone through `norm`; no layer returned it")
    if torch.equal(hidden[index], given[_ASKED]):
        return Wrong(f"entry {index} is what `layers[{_ASKED}]` was given; asked for is what it returned")
    other = next(number for number, output in enumerate(returned) if torch.equal(hidden[index], output))
    return Wrong(f"entry {index} is what `layers[{other}]` returned")


def _hidden_states() -> tuple[tuple[Tensor, ...], list[Tensor], list[Tensor]]:
    """Run a small model of transformers; its hidden states, what each layer was given and what it returned."""
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(
        LlamaConfig(hidden_size=8, intermediate_size=8, vocab_size=10, num_hidden_layers=_LAYERS, num_attention_heads=2)
    ).eval()
    names = [f"layers.{number}" for number in range(_LAYERS)]
    with torch.no_grad(), capture(model, *names, inputs=True) as seen:
        out = model(torch.tensor([[5, 6, 7]]), output_hidden_states=True)
    return out.hidden_states, [seen[name].args[0] for name in names], [seen[name].output for name in names]


# -- tokens, passed by name or not --------------------------------------------------------------------------------


class _Reads(nn.Module):
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


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(count_tokens: Callable[[nn.Module, list[int]], Any]) -> Wrong | None:
    for width, dtype in ((4, torch.float32), (6, torch.float64)):
        if wrong := _wrong_counts(count_tokens, _Reads(width, dtype)):
            return wrong
    return None


def _wrong_counts(count_tokens: Callable[[nn.Module, list[int]], Any], module: _Reads) -> Wrong | None:
    width, dtype = len(module.weight), module.weight.dtype
    counts: list[int] = []
    with_others(module)
    with registrations() as registered:
        handle = count_tokens(module, counts)
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
            where = "and then `args` is ()" if isinstance(error, IndexError) else "and then it is not in `kwargs`"
            return Wrong(f"`hidden_states` was {way}, {where}; your hook raised {type(error).__name__}: {error}")
        except RuntimeError as error:
            return Wrong(f"torch says: {error}")
        if wrong := _wrong_count(counts[done:], x, way):
            return wrong
        if not torch.equal(output, module.forward(*args, **kwargs)):
            return Wrong("with your hook, the module returns something else; the hook should only count")
    if not module.training:
        return Wrong("the module was in `train()`, and is in `eval()` now; the hook should only count")
    if "forward pre" not in registered:
        return Wrong("the counts are right, but not by a pre-hook; register one")
    if not isinstance(handle, RemovableHandle):
        return Wrong(f"the counts are right, but `count_tokens` returned {handle!r}; return the handle")
    handle.remove()
    if left_on(module):
        return Wrong("`remove()` on the handle you returned did not take your hook off")
    return None


def _wrong_count(new: list[int], x: Tensor, way: str) -> Wrong | None:
    texts, tokens, width = x.shape
    if new == [tokens]:
        return None
    what = f"`hidden_states` of shape {tuple(x.shape)} was {way if 'with' not in way else 'passed ' + way}"
    if not new:
        return Wrong(f"{what}, and your list holds nothing new; append to the list that was given")
    reasons = {texts: "that is how many texts there are", width: "that is the width of a row"}
    if "before" in way:
        by_name = "look for the name, not the first of the keyword arguments"
        reasons = {
            1: f"that comes from the mask: {by_name}",
            tokens + 9: f"that comes from the other stream: {by_name}",
        }
    said = ", ".join(map(str, new))
    return Wrong(f"{what}, and you noted {said}: {reasons.get(new[0], f'asked for are its {tokens} tokens, once')}")


# -- the last row of the stream -----------------------------------------------------------------------------------


class _Adds(nn.Module):
    """Adds its number to each number of the stream, in place or not, and returns the stream, alone or in a tuple."""

    def __init__(self, number: float, width: int, dtype: torch.dtype, in_tuple: bool, in_place: bool) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.full((width,), number, dtype=dtype))
        self.in_tuple, self.in_place = in_tuple, in_place

    def forward(self, x: Tensor) -> Any:
        x = x.add_(self.number) if self.in_place else x + self.number
        return (x, None) if self.in_tuple else x


class _Stack(nn.Module):
    """An embedding, and layers that hand on the stream."""

    def __init__(self, layers: list[nn.Module], width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, width, dtype=dtype)
        self.layers = nn.ModuleList(layers)
        self.calls = list[int]()

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls.append(len(tokens))
        x: Tensor = self.embedding(tokens)
        for layer in self.layers:
            output = layer(x)
            x = output[0] if isinstance(output, tuple) else output
        return x


def check_q3(last_rows: Callable[[nn.Module, list[nn.Module], Tensor], object]) -> Wrong | None:
    for case in ("tensors", "tuples", "both", "in place", "backwards"):
        if wrong := _wrong_rows(last_rows, case):
            return wrong
    breaking = _Stack([_Adds(1.0, 4, torch.float32, False, False), Breaks()], 4, torch.float32)
    told = swallows(lambda: last_rows(breaking, [*breaking.layers], torch.tensor([[1, 2, 3]])))
    if left := _hooks_on(breaking):
        return Wrong(f"a layer raised an error, and {hooks_are(left)} still on the model; remove them in a `finally`")
    return Wrong(SWALLOWED) if told else None


def _wrong_rows(last_rows: Callable[[nn.Module, list[nn.Module], Tensor], object], case: str) -> Wrong | None:
    width, tokens = (4, 3) if case in ("tensors", "in place") else (6, 5)
    dtype = torch.float64 if case == "tuples" else torch.float32
    numbers = torch.randint(1, 9, (3,)).tolist()
    kinds = {"tuples": (True, True, True), "both": (False, True, False)}.get(case, (False, False, False))
    layers: list[nn.Module] = [
        _Adds(number, width, dtype, in_tuple, case == "in place" and place > 0)
        for place, (number, in_tuple) in enumerate(zip(numbers, kinds, strict=True))
    ]
    model = _Stack(layers, width, dtype).eval()
    model.layers[0].register_forward_hook(_somebody_elses)
    texts = torch.stack([torch.randperm(10)[:tokens] for _ in range(2)])
    start = model.embedding(texts).detach()
    expected = [start + added for added in accumulate(numbers)]
    if case == "backwards":
        layers, expected = layers[::-1], expected[::-1]
    with torch.set_grad_enabled(case != "in place"):
        try:
            rows = last_rows(model, layers, texts)
        except (TypeError, AttributeError) as error:
            if "tuple" in str(error):
                return Wrong(f"here a layer returns a tuple that begins with the stream, and torch says: {error}")
            raise
    if (left := _hooks_on(model)) != 1:
        return Wrong(f"{hooks_are(left - 1)} still on the model; remove every handle" if left else _GONE)
    if len(model.calls) != 1:
        return Wrong(f"the model was called {len(model.calls)} times; once is enough")
    if not isinstance(rows, list | tuple):
        return Wrong(f"your function returned {type(rows).__name__}; return a list with a tensor for each layer")
    if len(rows) != len(layers) or not all(isinstance(row, Tensor) for row in rows):
        return Wrong(
            f"for {len(layers)} layers your list should hold {len(layers)} tensors, and it has {len(rows)} entries"
        )
    return next(
        (
            wrong
            for place, row in enumerate(rows)
            if (wrong := _wrong_row(row, expected[place], case, place, {"start": start, "last": expected[-1]}))
        ),
        None,
    )


def _wrong_row(row: Tensor, stream: Tensor, case: str, place: int, other: dict[str, Tensor]) -> Wrong | None:
    def is_(wanted: Tensor) -> bool:
        return row.shape == wanted.shape and row.dtype == wanted.dtype and torch.allclose(row, wanted, atol=1e-5)

    texts, tokens, width = stream.shape
    if is_(stream[:, -1]):
        return None
    shapes = f"of shape {tuple(row.shape)}, and the rows of {texts} texts are ({texts}, {width})"
    if row.shape == (texts, width) and is_(stream[:, 0]):
        return Wrong("you kept the row of the first token; asked for is the last")
    if row.shape == (tokens, width) and is_(stream[-1]):
        return Wrong(f"what you kept is {shapes}: axis 0 counts the texts, and axis 1 the tokens")
    if case != "tuples" and row.shape == (tokens,):
        return Wrong(f"what you kept is {shapes}: where a layer returns a tensor, `output[0]` is the first text")
    if row.shape != (texts, width):
        return Wrong(f"what you kept is {shapes}")
    if case == "backwards" and is_(other["last"][:, -1]):
        return Wrong("`layers` named the last layer first, and your list is in the order of the calls")
    if case == "in place" and is_(other["last"][:, -1]):
        return Wrong(f"your row of layer {place} was right, and then a later layer wrote into it in place; keep a copy")
    if torch.allclose(row, row[0, 0].expand_as(row), atol=1e-5):
        return Wrong("that is what the layer adds; asked for is the stream that it returned")
    return Wrong(f"your row of layer {place} is not the row of the last token that this layer returned")


# -- a logit lens ---------------------------------------------------------------------------------------------------


def check_q4(first_guesses: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    for width, blocks, tokens, dtype in ((8, 3, 4, torch.float32), (12, 4, 7, torch.float64)):
        if wrong := _wrong_guesses(first_guesses, *_lens_case(width, blocks, tokens, dtype)):
            return wrong
    model, text, _ = _lens_case(8, 2, 3, torch.float32)
    model.blocks[1] = Breaks()
    told = swallows(lambda: first_guesses(model, text))
    if left := _hooks_on(model):
        return Wrong(f"a block raised an error, and {hooks_are(left)} still on the model; remove them in a `finally`")
    return Wrong(SWALLOWED) if told else None


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
            "you read what each block was given; asked for is what it returned": top(given),
            "you read what each block adds; asked for is the whole stream": top(
                [after - before for after, before in zip(returned, given, strict=True)]
            ),
        }


def _wrong_guesses(
    first_guesses: Callable[[nn.Module, Tensor], object], model: Any, text: Tensor, read: dict[str, list[int]]
) -> Wrong | None:
    result = first_guesses(with_others(model), text)
    if left := _hooks_on(model):
        return Wrong(f"{hooks_are(left)} still on the model; remove every handle")
    if isinstance(result, Tensor) and result.dim() == 1:
        result = result.tolist()
    if not isinstance(result, list | tuple):
        return Wrong(f"your function returned {result!r}; return a list, with a token for each block")
    if not all(
        isinstance(token, int | np.integer) or (isinstance(token, Tensor) and token.dim() == 0) for token in result
    ):
        return Wrong(f"your list begins with {result[0]!r}; each entry is a token, a number")
    found, expected = [int(token) for token in result], read["right"]
    if found == expected:
        return None
    for reason, tokens in read.items():
        if found == tokens:
            return Wrong(f"you have {found}, not {expected}: {reason}")
    words = model.head.out_features
    if any(not 0 <= token < words for token in found):
        return Wrong(
            f"you have {found}, and there are only {words} tokens; take `argmax` over the scores of one position"
        )
    if len(found) != len(expected):
        return Wrong(f"the model has {len(expected)} blocks, and your list has {len(found)} entries")
    return Wrong(f"you have {found}, and the lens reads {expected}")
