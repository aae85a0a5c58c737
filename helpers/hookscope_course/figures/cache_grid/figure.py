"""See which tokens a hook hits in `generate()`: calls downwards, tokens to the right, with and without the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import traitlets
from torch import Tensor, nn

from hookscope import edit
from hookscope.pictures.colors import FORWARD, HOOK, LINE, PAGE
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay

__all__ = ["CHANGES", "CacheGrid", "Generation", "record_generation"]

_WAYS = ("with the cache", "without it")
_PROMPT = 5
_NEW = 4
CHANGES = {
    "output[:, 3]": "A hook that adds to index 3, the fourth token of the prompt.",
    "output[:, 3:4]": "The same token, as a slice.",
    "output[:, -1]": "A hook that adds to the last token.",
    "output": "A hook that adds to every token.",
    "positions=3": "hookscope.edit, with positions=3.",
}
"""What the figure can add a vector to, and in words."""


class Generation(NamedTuple):
    """One run of `generate()` with a hook that changes something.

    Args:
        given: how many tokens each call was given.
        hits: by call, the tokens of the whole sequence that the hook changed.
        error: the name of the error that ended the run; "" if none did.
        logits: the scores of each new token.

    """

    given: tuple[int, ...]
    hits: tuple[tuple[int, ...], ...]
    error: str
    logits: tuple[Tensor, ...]


def record_generation(model: nn.Module, layer: str, change: str, *, cache: bool) -> Generation:
    """Generate four tokens after five, with one of `CHANGES` at a layer, and note what was changed in each call.

    Args:
        model: a language model of the transformers library.
        layer: the name of a layer that returns (N, T, width).
        change: one of `CHANGES`.
        cache: whether `generate()` uses its KV cache.

    """
    module = model.get_submodule(layer)
    plain: list[Tensor] = []
    given: list[int] = []
    hits: list[tuple[int, ...]] = []

    def look_before(module: nn.Module, args: object, output: Tensor) -> None:
        plain.append(output.clone())
        given.append(output.shape[1])

    def look_after(module: nn.Module, args: object, output: Tensor) -> None:
        start = sum(given[:-1]) if cache else 0
        changed = (output != plain[-1]).any(-1)[0].nonzero().flatten()
        hits.append(tuple((start + changed).tolist()))

    prompt = torch.arange(5, 5 + _PROMPT)[None]
    options: dict[str, Any] = {"min_new_tokens": _NEW, "max_new_tokens": _NEW, "do_sample": False, "pad_token_id": 0}
    options |= {"use_cache": cache, "attention_mask": torch.ones_like(prompt)}
    seen = {"return_dict_in_generate": True, "output_logits": True}
    error, logits = "", ()
    vector = _vector(model, layer, prompt)
    with ExitStack() as handles:
        handles.enter_context(module.register_forward_hook(look_before))
        if change == "positions=3":
            changes = handles.enter_context(edit(model))
            changes.add(layer, vector, positions=3)
        else:
            handles.enter_context(module.register_forward_hook(_hook(change, vector)))
        handles.enter_context(module.register_forward_hook(look_after))
        try:
            with torch.no_grad():
                logits = model.generate(prompt, **options, **seen).logits  # type: ignore[operator]
        except IndexError as raised:
            error = type(raised).__name__
    return Generation(tuple(given), tuple(hits), error, tuple(logits))


def _hook(change: str, vector: Tensor) -> Callable[[nn.Module, object, Tensor], Tensor]:
    index: Any = {"output[:, 3]": 3, "output[:, 3:4]": slice(3, 4), "output[:, -1]": -1, "output": slice(None)}[change]

    def add(module: nn.Module, args: object, output: Tensor) -> Tensor:
        changed = output.clone()
        changed[:, index] += vector
        return changed

    return add


def _vector(model: nn.Module, layer: str, prompt: Tensor) -> Tensor:
    """Return a random vector as wide as the layer; one that is the same in each number would be lost in a norm."""
    width: list[int] = []
    with (
        torch.no_grad(),
        model.get_submodule(layer).register_forward_hook(lambda _, args, output: width.append(output.shape[-1])),
    ):
        model(prompt)
    return torch.randn(width[0], generator=torch.Generator().manual_seed(0))


class CacheGrid(LazyFigure):
    """Mark the tokens that a hook hits in `generate()`, run it, and compare, with and without the KV cache.

    Each row is a call of the layer, and each column a token of the whole sequence. All runs are made by the model when
    the figure is made: five tokens of prompt, four new ones.

    Args:
        model: a language model of the transformers library, such as GPT-2.
        layer: the name of a layer that returns (N, T, width), such as a block.

    Attributes:
        change: one of `CHANGES`.
        marks: the cells that you expect to be hit, as "way,call,token": way 0 is with the cache, and calls and tokens
            are counted from 0.
        ran: whether it was run. Another change hides the hits again.

    Raises:
        ValueError: there is no such change or cell.

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("change", "marks", "ran")

    change: Any = traitlets.Unicode("output[:, 3]").tag(sync=True)
    marks: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    ran: Any = traitlets.Bool(False).tag(sync=True)
    _data: Any = traitlets.Dict().tag(sync=True)  # all runs; nothing is asked of the kernel

    def __init__(self, model: nn.Module, layer: str) -> None:
        runs = {}
        for change in CHANGES:
            found = [record_generation(model, layer, change, cache=cache) for cache in (True, False)]
            runs[change] = {
                "ways": [{"hits": [list(hit) for hit in run.hits], "error": run.error} for run in found],
                "why": _why(change, found),
                "same": _is_same(found),
            }
        given = [list(record_generation(model, layer, "output", cache=cache).given) for cache in (True, False)]
        changes = [[name, words] for name, words in CHANGES.items()]
        super().__init__(
            _data={"changes": changes, "runs": runs, "given": given, "prompt": _PROMPT, "ways": list(_WAYS)}
        )
        self._describe()
        keep_state(self, "change", "marks", "ran")

    def run(self) -> str:
        """Run it, and say which cells were hit and why."""
        self.ran = True
        return self._said()

    @property
    def hits(self) -> dict[str, list[list[int]]]:
        """The tokens that are hit, call by call, with the cache and without; only after the run."""
        if not self.ran:
            raise RuntimeError("the hits are hidden until you have guessed; then call run(), or press Run")
        return {way: run["hits"] for way, run in zip(_WAYS, self._runs["ways"], strict=True)}

    @property
    def differs(self) -> str:
        """The change whose two runs come to their end and compute different scores; of several, the first."""
        for change, found in self._data["runs"].items():
            if not found["same"] and not any(run["error"] for run in found["ways"]):
                return str(change)
        return ""

    @property
    def _runs(self) -> dict[str, Any]:
        found: dict[str, Any] = self._data["runs"][self.change]
        return found

    def _hit_cells(self) -> set[str]:
        return {
            f"{way},{call},{token}"
            for way, run in enumerate(self._runs["ways"])
            for call, tokens in enumerate(run["hits"])
            for token in tokens
        }

    def _said(self) -> str:
        hit, marked = self._hit_cells(), set(self.marks)
        told = f"{len(hit & marked)} of {len(hit)} found"
        if wrong := len(marked - hit):
            told += f", {wrong} marked that {'is' if wrong == 1 else 'are'} not hit"
        return f"{told}. {self._runs['why']}" if marked else str(self._runs["why"])

    @traitlets.validate("change", "marks")
    def _check(self, proposal: Mapping[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "change" and value not in CHANGES:
            raise ValueError(f"change={value!r}: choose from {', '.join(map(repr, CHANGES))}")
        if name == "marks" and (unknown := [cell for cell in value if cell not in self._cells()]):
            raise ValueError(f"there is no cell {unknown[0]!r}: in that call, the layer is not given that token")
        return value

    def _cells(self) -> Collection[str]:
        cells = set()
        for way, given in enumerate(self._data["given"]):
            for call, count in enumerate(given):
                start = sum(given[:call]) if way == 0 else 0
                cells |= {f"{way},{call},{token}" for token in range(start, start + count)}
        return cells

    @traitlets.observe("change")
    def _ask_anew(self, change: object) -> None:
        if self._received & {"marks", "ran"}:
            return  # the page asked anew by itself; while the kernel was busy, it may have marked and run since
        self.marks, self.ran = [], False

    @traitlets.observe("change", "marks", "ran")
    def _describe(self, change: object = None) -> None:
        if not self._data:
            return
        words = self._said() if self.ran else f"{len(self.marks)} cells are marked; the hits are hidden."
        self.alt = (
            "Two grids, with the KV cache and without it: a row for each call, a column for each token. The hook adds "
            f"to {self.change}. {words}"
        )

    def numbers(self) -> Rows:
        """List the tokens that each change hits, call by call."""
        return [
            {"added to": change, **{way: _listed(run) for way, run in zip(_WAYS, found["ways"], strict=True)}}
            for change, found in self._data["runs"].items()
        ]

    # The two grids of the last token, the telling case.
    def _still(self) -> bytes:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        figure = Figure(figsize=(8, 2.6), layout="constrained")
        hit, cells = self._hit_cells() if self.ran else set(), self._cells()
        for way, axes in enumerate(figure.subplots(1, 2)):
            for call, token in ((call, token) for call in range(_NEW) for token in range(_PROMPT + _NEW - 1)):
                key = f"{way},{call},{token}"
                if key in cells:
                    colors: dict[str, Any] = {"facecolor": HOOK if key in hit else PAGE, "edgecolor": FORWARD}
                    axes.add_patch(Rectangle((token - 0.4, call - 0.4), 0.8, 0.8, linewidth=1.5, **colors))
                elif token < _PROMPT + call:
                    axes.plot([token], [call], "o", color=LINE, markersize=4)
            axes.set(
                xlim=(-0.6, 7.6), ylim=(3.6, -0.6), xticks=range(8), yticks=range(4), title=_WAYS[way], aspect="equal"
            )
            axes.set_yticklabels([f"call {call + 1}" for call in range(_NEW)])
            axes.xaxis.tick_top()
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        return from_figure(figure, self.alt).png


def _listed(run: Mapping[str, Any]) -> str:
    """Write the hits of a run, call by call."""
    calls = [", ".join(map(str, hit)) or "none" for hit in run["hits"]]
    return "; ".join([*calls, run["error"]] if run["error"] else calls)


def _is_same(runs: list[Generation]) -> bool:
    """Whether both runs computed the same scores for every new token."""
    first, second = (run.logits for run in runs)
    return bool(first) and all(torch.allclose(a, b, atol=1e-4) for a, b in zip(first, second, strict=True))


def _why(change: str, runs: list[Generation]) -> str:
    """Say what happened in both runs, and whether they compute the same."""
    told = {
        "output[:, 3]": "With the cache, call 2 is given one token. It has no index 3, so torch raises an error.",
        "output[:, 3:4]": "With the cache, the slice is empty from call 2 on, and nothing is raised. Token 3 was hit "
        "in call 1, and its keys and values are kept.",
        "output[:, -1]": "With the cache, each new token is hit once and stays so. Without it, the tokens before the "
        "last one are computed again, and not hit.",
        "output": "Every token that a call is given is hit, so none is missed.",
        "positions=3": "hookscope asks the model at which position each call begins, and counts from there.",
    }[change]
    if any(run.error for run in runs):
        return f"{told} The run without the cache comes to its end."
    same = "Both runs compute the same scores." if _is_same(runs) else "The two runs compute different scores."
    return f"{told} {same}"
