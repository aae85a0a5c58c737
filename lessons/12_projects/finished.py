"""The tools of chapter 12, finished: exactly the code of the solutions in exercises.md.

The chapter shows what a tool does before the learner builds it, and its later cells work whatever the learner built.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hookscope_course.practice import read_exercises

_TEXTS = {text.name: text for text in read_exercises(Path(__file__).with_name("exercises.md"))}


def _tool(exercise: str, name: str) -> Any:
    """What an exercise's solution defines, without the check that ends it."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(_TEXTS[exercise].before, names)
    body = ast.parse(_TEXTS[exercise].solution).body[:-1]
    exec(compile(ast.Module(body, []), f"<solution of {exercise}>", "exec"), names)
    return names[name]


hunt = _tool("q1", "hunt")
watch_relus = _tool("q2", "watch_relus")
features = _tool("q3", "features")
silence = _tool("q4", "silence")
step_in_backward = _tool("q5", "step_in_backward")
halved = _tool("q6", "halved")
