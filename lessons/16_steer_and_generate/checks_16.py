"""Exercises of chapter 16: which tokens a hook hits, an edit at one token of a prompt, a vector to be trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import census
from hookscope.samples import STORY_WORDS, story_lm, story_tokens
from hookscope.samples.stories import MANY, NAMES, ONE, PLACES, THINGS
from hookscope_course.practice import Wrong, allows
from hookscope_course.practice.check_helpers import (
    ERROR_HIDDEN,
    BreakingLayer,
    add_foreign_hooks,
    format_count,
    hides_errors,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, returns

_WORDS = (*NAMES, *PLACES, *THINGS, *ONE, *MANY)


def _steered() -> int:
    """Count the tokens that `output[:, -1]` is, in a run of `generate`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 10, "n_positions": 16}
    gpt = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    hit: list[int] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        hit.append(sum(hit) + output.shape[1])

    prompt = torch.arange(7)[None]
    with torch.no_grad(), gpt.transformer.h[0].register_forward_hook(note):
        gpt.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False)
    return len(set(hit))


check_q1 = returns(
    _steered,
    what="an integer",
    reasons={
        4: "you counted only the calls with one token; the first call also steers the last token of the prompt",
        6: "you counted one too many; the last new token is never passed to the model",
        12: "you counted all tokens of the sequence; in each call, `-1` is only one token",
        11: "you counted all tokens that the model gets; in each call, `-1` is only one token",
        1: "you counted only the first call; each later call steers a token, too",
        7: "you counted all tokens of the prompt; in the first call, `-1` is only one of them",
    },
    otherwise="your answer {answer} is wrong; how often is the layer called, and how many tokens does each call have?",
)


# -- one token of the prompt --------------------------------------------------------------------------------------


class _Layer(nn.Module):
    """Multiplies by a weight, as a layer that takes and returns the stream, (batch, tokens, width)."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=dtype) + 1)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        self.returned = x * self.weight
        return self.returned


@adds_hook((True, 3, torch.float32), (False, 4, torch.float64), (True, 5, torch.float64), right="the edits are right")
def check_q2(
    edit_at: Callable[[nn.Module, int, Tensor], Any], cache: bool, width: int, dtype: torch.dtype
) -> Wrong | None:
    layer, place = _Layer(width, dtype), int(torch.randint(1, 5, ()))
    vector = torch.rand(width, dtype=dtype) + 1
    edit_at(layer, place, vector.clone())
    lengths = (torch.randperm(4)[:2] + 6).tolist()
    for which, length in zip(("first", "second"), lengths, strict=True):  # prompts, one after the other
        new = [1, 1, 1] if cache else [length + 1, length + 2, length + 3]
        for number, tokens in enumerate((length, *new), 1):
            x = torch.rand(2, tokens, width, dtype=dtype)
            first = length + number - 2 if cache and number > 1 else 0  # as the blocks of transformers are told
            positions = torch.arange(first, first + tokens)[None]
            plain = layer.forward(x).detach().clone()
            said = (
                f"with{'' if cache else 'out'} the cache, call {number} of the {which} prompt has {tokens} "
                f"token{'s' if tokens > 1 else ''}"
            )
            said += f", `place` is {place}"
            try:
                with torch.no_grad():
                    output = layer(x, position_ids=positions)
            except IndexError as error:
                return Wrong(f"{said}, and your hook raised IndexError: {error}; it should check that the row exists")
            wanted = plain.clone()
            wanted[:, place : place + 1] += vector
            if number > 1 and cache:
                wanted = plain
            if not torch.equal(layer.returned, plain):
                return Wrong(
                    f"{said}, and your hook wrote into the tensor that the layer returned; it should change a clone"
                )
            if wrong := _wrong_edit(output, plain, wanted, said):
                return wrong
    return None


def _wrong_edit(output: object, plain: Tensor, wanted: Tensor, said: str) -> Wrong | None:
    if not isinstance(output, Tensor) or output.shape != plain.shape:
        found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        return Wrong(f"{said}, and your hook returned {found}; it should return shape {tuple(plain.shape)}")
    if torch.allclose(output, wanted):
        return None
    hit = (output != plain).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    if not hit:
        return Wrong(f"{said}, but that token did not change; return the new output in every call that has this token")
    if torch.equal(wanted, plain):
        return Wrong(f"{said}, and your hook changed it; it is a later token and should stay the same")
    where = (wanted != plain).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    if hit != where:
        return Wrong(f"{said}, but your hook changed the tokens {hit}; it should be {where}")
    return Wrong(f"{said}, but you did not add `vector` exactly once in each text of the batch")


# -- a vector that makes the model say a word ----------------------------------------------------------------------


@allows("hooks")
def check_q3(train_vector: Callable[[nn.Module, nn.Module, Tensor, int], object]) -> Wrong | None:
    for block, text in ((0, "the birds near the dog"), (1, "when Anna and Ben went to the beach ,")):
        if wrong := _wrong_vector(train_vector, block, text):
            return wrong
    breaking, called = story_lm(), list[object]()
    breaking.blocks[0].register_forward_pre_hook(lambda module, args: called.append(module))
    breaking.blocks[1] = BreakingLayer()
    told = hides_errors(lambda: train_vector(breaking, breaking.blocks[0], story_tokens("the dog"), 3))
    if (left := len(census(breaking, include_global=False)) - 1) > 0:
        return Wrong(
            f"a layer raised an error, and {format_count(left)} still on the model; remove your hook in a `finally`"
        )
    if left < 0:
        return Wrong("you removed a hook that was already on the model; remove only your own")
    if not all(weight.requires_grad for weight in breaking.parameters()):
        return Wrong(
            "a layer raised an error, and the weights no longer require gradients; restore `requires_grad` in a "
            "`finally`"
        )
    if told and not called:
        return Wrong("you did not call the model; the loss should come from the output of the model")
    return Wrong(ERROR_HIDDEN) if told else None


def _wrong_vector(
    train_vector: Callable[[nn.Module, nn.Module, Tensor, int], object], block: int, text: str
) -> Wrong | None:
    model, tokens = story_lm(), story_tokens(text)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    norm = model.norm.weight
    mine, norm.grad = torch.ones_like(norm), torch.ones_like(norm)  # from somebody's own backward()
    with torch.no_grad():
        probable = model(tokens)[0, -1].softmax(-1)
    # No verbs: a vector lifts four of them together, each to about a quarter. Nor the words that begin a sentence.
    unlikely = [token for token in map(STORY_WORDS.index, _WORDS) if probable[token] < 0.01]
    target = unlikely[int(torch.randint(len(unlikely), ()))]
    word = STORY_WORDS[target]
    try:
        vector = train_vector(add_foreign_hooks(model), model.blocks[block], tokens, target)
    except RuntimeError as error:
        if "does not require grad" in str(error):
            return Wrong(
                f"torch says: {error}. The loss does not depend on your vector: the vector should require a gradient, "
                "and the hook should return the sum, without `detach`"
            )
        raise
    if left := find_left_hooks(model):
        return left
    if any(not torch.equal(value, before[name]) for name, value in model.state_dict().items()):
        return Wrong("you changed the weights of the model; pass only your vector to the optimizer")
    if any(weight.grad is not None for weight in model.parameters() if weight is not norm):
        return Wrong(
            "you filled the `.grad` of some weights; `loss.backward(inputs=[vector])` fills only `vector.grad`"
        )
    if norm.grad is None or not torch.equal(norm.grad, mine):
        return Wrong(
            "a weight had a `.grad` from an earlier backward(), and you changed or deleted it; "
            "`loss.backward(inputs=[vector])` fills only `vector.grad`"
        )
    if not all(weight.requires_grad for weight in model.parameters()):
        return Wrong("you switched off `requires_grad` of a weight; it should be on, as before")
    width = model.tokens.embedding_dim
    if not isinstance(vector, Tensor) or vector.shape != (width,):
        found = f"shape {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
        return Wrong(f"your function returned {found}; it should be the vector, of shape ({width},)")
    if vector.requires_grad:
        return Wrong("your vector still requires a gradient; return `vector.detach()`")
    with torch.no_grad(), model.blocks[block].register_forward_hook(lambda module, args, output: output + vector):
        share = float(model(tokens)[0, -1].softmax(-1)[target])
    if share > 0.5:
        return None
    return Wrong(
        f"with your vector, the probability of {word!r} after {text!r} is {share:.4f}; it should be above 0.5. Without "
        f"the vector, it is {probable[target]:.4f}"
    )
