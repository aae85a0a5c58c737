"""The models that `OwnModel` has by name, with inputs that they take."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from hookscope import samples
from hookscope.extras import optional_import
from hookscope.samples.efficientnet import PHOTO_WEIGHTS

__all__ = ["NAMED", "OwnModelError", "load_model", "say"]


class OwnModelError(ValueError):
    """The hooks of a chapter cannot run on this model. A notebook shows the message without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def say(sentence: str) -> None:
    """Print a sentence in lines of 90 characters."""
    print(textwrap.fill(sentence, 90, break_long_words=False, break_on_hyphens=False))


@dataclass
class _Chosen:
    """A model with inputs that it takes, the names of its classes, and its tokenizer."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ()
    tokenizer: Any = None


def load_model(model: nn.Module | str) -> _Chosen:
    """Build the model of a name, in eval mode. The global random state does not change."""
    if isinstance(model, nn.Module):
        return _Chosen(model)
    if not isinstance(model, str) or model not in NAMED:
        near = get_close_matches(str(model).lower(), NAMED, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(NAMED)}."
        raise OwnModelError(f"no model {model!r}; {hint} You can also pass a model and its inputs, OwnModel(model, x).")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return NAMED[model]()
    except ModuleNotFoundError as error:
        raise OwnModelError(error.msg) from error


def _build_photo() -> _Chosen:
    if samples.has_photo_weights():
        return _Chosen(samples.photo_cnn(), (samples.photo(),), classes=samples.PHOTO_CLASSES)
    say(f"NOTE: the weights of the photo network are missing ({PHOTO_WEIGHTS}), so this is the digit network.")
    return _build_digits()


def _build_digits() -> _Chosen:
    return _Chosen(samples.digit_cnn(), (samples.digit(5),), classes="0123456789")


def _build_sentences() -> _Chosen:
    model, tokenizer = samples.sentence_encoder()
    return _Chosen(model, kwargs=dict(tokenizer(["The cat sat on the mat."], return_tensors="pt")))


def _build_english() -> _Chosen:
    model, tokenizer = samples.english_lm()
    return _Chosen(model, kwargs=dict(tokenizer("The capital of Japan is", return_tensors="pt")), tokenizer=tokenizer)


def _build_resnet18() -> _Chosen:
    with optional_import("the model 'resnet18'"):
        from torchvision.models import resnet18
    return _Chosen(resnet18().eval(), (samples.photo(),))


def _build_gpt2() -> _Chosen:
    with optional_import("the model 'gpt2'"):
        from transformers import GPT2Config, GPT2LMHeadModel
    # The vocabulary is small, and no token of it begins or ends a text.
    config = GPT2Config(vocab_size=100, n_embd=64, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None)
    return _Chosen(GPT2LMHeadModel(config).eval(), kwargs={"input_ids": torch.randint(100, (1, 24))})


NAMED: dict[str, Callable[[], _Chosen]] = {
    "photo": _build_photo,
    "sentences": _build_sentences,
    "english": _build_english,
    "digits": _build_digits,
    "resnet18": _build_resnet18,
    "gpt2": _build_gpt2,
}
