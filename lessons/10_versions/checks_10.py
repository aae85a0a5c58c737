"""Exercises of chapter 10: ask the records by code, and write a hook for two ages of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lessons.checks import Exercise, Wrong, ____
from lessons.history import records

__all__ = ["____", "q1", "q2", "q3"]

_TAKEN_BACK = {"1.8.0": "no", "1.9.0": "yes", "1.10.0": "no", "1.11.0": "yes", "1.12.0": "yes"}


def _check_since(since: Callable[[Mapping[str, str]], Any]) -> Wrong | None:
    for name in ("forward_hook_returns", "retain_grad_then_hook", "forward_called_directly", "full_hook_plain_input"):
        if wrong := _since_of(since, records.history(name), [*records.changes(name)][-1], name):
            return wrong
    return _since_of(since, _TAKEN_BACK, "1.11.0", f"the answers {_TAKEN_BACK}")


def _since_of(
    since: Callable[[Mapping[str, str]], Any], answers: Mapping[str, str], right: str, of: str
) -> Wrong | None:
    got = since(dict(answers))
    if got == right:
        return None
    if not isinstance(got, str) or got not in answers:
        return Wrong(f"for {of} you returned {got!r}, which is no release")
    newest = [*answers.values()][-1]
    if answers[got] != newest:
        return Wrong(f"for {of} you returned {got}, which answers {answers[got]!r}; the newest one answers {newest!r}")
    later = [release for release in [*answers][[*answers].index(got) :] if answers[release] != newest]
    if later:
        return Wrong(f"for {of} you returned {got}, but after it {later[0]} answers {answers[later[0]]!r} again")
    return Wrong(f"for {of} you returned {got}, but {right} before it answers {newest!r} already")


q1 = Exercise(
    "10.1",
    question="`records.history(name)` is a dict: release to answer, the oldest release first. Write `since(answers)`, "
    "which returns the release from which on the newest answer has held without a break.",
    difficulty="medium",
    minutes=5,
    check=_check_since,
    why="Walking back from the newest release finds the last change, also where an answer was taken back in between.",
    hints=(
        "Begin at the newest release, and go back while the answer stays the same.",
        "`for release in reversed(answers):` walks back. Keep the last release that still answers the same.",
    ),
    solution="""
def since(answers):
    newest = list(answers.values())[-1]
    for release in reversed(answers):
        if answers[release] != newest:
            break
        first = release
    return first

q1.check(since)
""",
    setup="from lessons.history import records\n",
    wrong={
        """
def since(answers):
    newest = list(answers.values())[-1]
    for release, answer in answers.items():
        if answer == newest:
            return release

q1.check(since)
""": "you returned 1.9.0, but after it 1.10.0 answers 'no' again",
        """
def since(answers):
    newest = list(answers.values())[-1]
    return min(release for release, answer in answers.items() if answer == newest)

q1.check(since)
""": "but 1.2.0 before it answers '60' already",
        """
def since(answers):
    return list(answers)[0]

q1.check(since)
""": "you returned 1.0.0, which answers",
        """
def since(answers):
    return list(answers.values())[-1]

q1.check(since)
""": "which is no release",
    },
)


def _called_as_in_1_0(hook: Callable[..., Any], module: nn.Module, x: Tensor) -> Tensor:
    """Call a module with one forward hook as torch 1.0 and 1.1 did."""
    output: Tensor = module.forward(x)
    if hook(module, (x,), output) is not None:
        raise RuntimeError("forward hooks should never return any values")
    return output


def _check_five_more(five_more: Callable[..., Any]) -> Wrong | None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    x = torch.tensor([3.0])
    try:
        old = _called_as_in_1_0(five_more, layer, x)
    except RuntimeError as error:
        if "should never return" not in str(error):
            raise
        return Wrong("on torch 1.0 your hook raises RuntimeError: forward hooks should never return any values")
    with layer.register_forward_hook(five_more):
        new = layer(x)
    for release, output in (("1.0", old), (records.installed(), new)):
        if output.item() != 11:
            return Wrong(
                f"the layer makes 6 of 3; with your hook, on torch {release} the caller gets {output.item():g}"
            )
    if layer(x).item() != 6 or x.item() != 3:
        return Wrong("your hook changed the layer or its input; only the output is to be 5 more")
    return None


q2 = Exercise(
    "10.2",
    question="Write a forward hook `five_more(module, args, output)` that makes the output 5 larger for the caller: "
    "on the torch that runs here and on torch 1.0. (The check calls your hook in both ways.)",
    difficulty="easy",
    minutes=4,
    check=_check_five_more,
    why="An edit in place shows in every release; the return value counts from 1.2 on only, and raised before.",
    hints=(
        "Look at the row `forward hook edits in place` of the records.",
        "`output += 5` writes into the tensor that the caller gets. What must the hook return then?",
    ),
    solution="""
def five_more(module, args, output):
    output += 5

q2.check(five_more)
""",
    wrong={
        """
def five_more(module, args, output):
    return output + 5

q2.check(five_more)
""": "on torch 1.0 your hook raises RuntimeError",
        """
def five_more(module, args, output):
    output = output + 5

q2.check(five_more)
""": "on torch 1.0 the caller gets 6",
        """
def five_more(module, args, output):
    return output.add_(5)

q2.check(five_more)
""": "on torch 1.0 your hook raises RuntimeError",
        """
def five_more(module, args, output):
    args[0].add_(5)

q2.check(five_more)
""": "the caller gets 6",
    },
)


def _check_pair(explained: object, printed: object) -> Wrong | None:
    answers = records.history("legacy_linear_1d")
    for name, release, wanted in (("explained", explained, "[5], [5]"), ("printed", printed, "[1, 5]")):
        if not isinstance(release, str) or release not in answers:
            return Wrong(f"`{name}` is {release!r}, which is no recorded release")
        if answers[release] != wanted:
            return Wrong(f"`{name}` is {release}, which answers {answers[release]}, not {wanted}")
    order = [*answers]
    if order.index(str(printed)) != order.index(str(explained)) + 1:
        return Wrong(f"{explained} and {printed} are right, but not next to each other: there are releases in between")
    return None


q3 = Exercise(
    "10.3",
    question="Document D3 prints `[1, 5]` and explains `[5]`, `[5]`. Find by code, in the records of the probe "
    "`legacy_linear_1d`, two releases next to each other: `explained`, the last one for which the explanation is "
    "true, and `printed`, the first one that prints the document's output.",
    difficulty="easy",
    minutes=4,
    check=_check_pair,
    why="Between two neighbours the layer's last step changed, and with it what a legacy hook gets.",
    hints=(
        'Collect the releases for which `records.history("legacy_linear_1d")` has the one answer, and the other.',
        'The explanation is the answer "[5], [5]", and the output "[1, 5]". Take the last of the one list and the '
        "first of the other.",
    ),
    solution="""
answers = records.history("legacy_linear_1d")
explained = [release for release in answers if answers[release] == "[5], [5]"][-1]
printed = [release for release in answers if answers[release] == "[1, 5]"][0]

q3.check(explained, printed)
""",
    setup="from lessons.history import records\n",
    wrong={
        """
answers = records.history("legacy_linear_1d")
explained = [release for release in answers if answers[release] == "[1, 5]"][0]
printed = [release for release in answers if answers[release] == "[5], [5]"][-1]

q3.check(explained, printed)
""": "answers [1, 5], not [5], [5]",
        """
answers = records.history("legacy_linear_1d")
explained, printed = list(answers)[0], list(answers)[-1]

q3.check(explained, printed)
""": "but not next to each other",
        """
answers = records.history("legacy_linear_1d")
explained, printed = "[5], [5]", "[1, 5]"

q3.check(explained, printed)
""": "which is no recorded release",
    },
)
