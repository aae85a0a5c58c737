"""Every example in a docstring runs and says what it says."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hookscope
import hookscope_course


def modules_of(package: ModuleType) -> list[str]:
    """Every module of a package, itself included."""
    found = [package.__name__]
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith("hookscope_course.lessons."):  # the chapters have no examples
            found.append(module.name)
    return found


COURSE = modules_of(hookscope_course) if torch.__version__ >= (2, 8) else []  # what the course promises


def has_examples(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and ">>> " in Path(spec.origin).read_text("utf-8")


REAL_MODELS = (  # which take seconds to load
    "hookscope.samples.smollm2", "hookscope.samples.minilm", "hookscope_course.chapters.ch14_smollm2",
    "hookscope_course.chapters.ch14_sentence_encoder",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in REAL_MODELS else ())
        for name in filter(has_examples, modules_of(hookscope) + COURSE)
    ],
)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize("name", hookscope.__all__)
def test_everything_public_is_documented_with_an_example(name: str) -> None:
    thing = getattr(hookscope, name)
    text = inspect.getdoc(thing) or ""
    assert len(text) > 80
    if inspect.isfunction(thing):
        assert ">>>" in text, f"{name} has no example"


def test_every_room_says_what_it_is_for() -> None:
    for name in modules_of(hookscope):
        first = (importlib.import_module(name).__doc__ or "").strip().splitlines()
        assert first, name
        assert first[0].endswith("."), f"{name}: the first line of the docstring is one sentence"
