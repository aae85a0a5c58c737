"""Exercises of chapter 10: ask the records by code, and write a hook for two ages of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from hookscope_course.history import records
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.probing import CALLS_NOTHING

_TAKEN_BACK = {"1.8.0": "no", "1.9.0": "yes", "1.10.0": "no", "1.11.0": "yes", "1.12.0": "yes"}


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q1(since: Callable[[Mapping[str, str]], Any]) -> Wrong | None:
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
        return Wrong(f"for {of} you returned {got}, which has {answers[got]!r}; the newest one has {newest!r}")
    later = [release for release in [*answers][[*answers].index(got) :] if answers[release] != newest]
    if later:
        return Wrong(f"for {of} you returned {got}, but after it {later[0]} has {answers[later[0]]!r} again")
    return Wrong(f"for {of} you returned {got}, but {right} before it has {newest!r} already")


def _called_as_in_1_0(hook: Callable[..., Any], module: nn.Module, x: Tensor) -> Tensor:
    """Call a module with one forward hook as torch 1.0 and 1.1 did; a hook that asks is told that this is 1.0."""
    output: Tensor = module.forward(x)
    old = TorchVersion("1.0.0")
    with mock.patch.object(torch, "__version__", old), mock.patch.object(torch.version, "__version__", old):
        if hook(module, (x,), output) is not None:
            raise RuntimeError("forward hooks should never return any values")
    return output


@allows("values")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(five_more: Callable[..., Any]) -> Wrong | None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    other = nn.Linear(2, 3).double()
    for module, x in ((layer, torch.tensor([3.0])), (other, torch.randn(4, 2, dtype=torch.float64))):
        if wrong := _wrong_five(five_more, module, x):
            return wrong
    return None


def _wrong_five(five_more: Callable[..., Any], layer: nn.Module, x: Tensor) -> Wrong | None:
    plain, given = layer(x), x.clone()
    try:
        old = _called_as_in_1_0(five_more, layer, x)
    except RuntimeError as error:
        if "should never return" not in str(error):
            raise
        return Wrong("on torch 1.0 your hook raises RuntimeError: forward hooks should never return any values")
    with layer.register_forward_hook(five_more):
        new = layer(x)
    for release, output in (("1.0", old), (records.installed(), new)):
        if not isinstance(output, Tensor) or not torch.allclose(output, plain + 5):
            got = output.tolist() if isinstance(output, Tensor) else repr(output)
            if plain.numel() > 1:
                return Wrong("your hook does not make every number 5 larger where the layer returns a batch")
            return Wrong(
                f"the layer returns {plain.tolist()}; with your hook, on torch {release} the caller gets {got}"
            )
    if not torch.equal(layer(x), plain) or not torch.equal(x, given):
        return Wrong("your hook changed the layer or its input; only the output is to be 5 more")
    return None


def check_q3(explained: object, printed: object) -> Wrong | None:
    answers = records.history("legacy_linear_1d")
    for name, release, wanted in (("explained", explained, "[5], [5]"), ("printed", printed, "[1, 5]")):
        if not isinstance(release, str) or release not in answers:
            return Wrong(f"`{name}` is {release!r}, which is no recorded release")
        if answers[release] != wanted:
            return Wrong(f"`{name}` is {release}, which has {answers[release]}, not {wanted}")
    order = [*answers]
    if order.index(str(printed)) != order.index(str(explained)) + 1:
        return Wrong(
            f"{explained} has [5], [5], and {printed} has [1, 5], but they are not next to each other: there are "
            "releases in between"
        )
    return None
