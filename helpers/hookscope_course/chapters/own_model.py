"""The last cell of a chapter: the reader's own model takes the place of the digit network."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping
from posixpath import commonprefix
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import hookscope
from hookscope.captures import Capture
from hookscope.model_inputs import check_kwargs
from hookscope.pictures import Picture, Table
from hookscope.pytree import Path, find_paths, find_tensors, keystr, replace_at
from hookscope_course.chapters.named_models import OwnModelError, load_model, say
from hookscope_course.chapters.own_outputs import OutputComparison, draw_rows, find_first, find_ranked, list_tensors

__all__ = ["OwnModel", "OwnModelError"]

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Layers(dict[str, nn.Module]):
    """Layers by name; shown as one name for each kind, with `*` for the numbers."""

    def __repr__(self) -> str:
        kinds = Counter(re.sub(r"\d+(?=\.|$)", "*", name) or "(root)" for name in self)
        return f"{len(self)} layers: " + ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in kinds.items())


class OwnModel:
    """A model, its inputs, and a layer for the hook of a chapter.

    The names are "photo", "sentences", "english" and "digits", which are trained, and "resnet18" and "gpt2", with
    random weights. The model runs once, to find `layers`: those with weights that are called. `layer` is the first
    convolution, or a block in the middle of a model that reads text. `args` and `kwargs` are new copies each time, so
    a cache in them does not grow.

    Args:
        model: a module in eval mode, or a name.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        layer: the name of another layer or block, "" for the whole model.
        tokenizer: with a method `decode`, to show tokens as text.

    Raises:
        OwnModelError: the hooks cannot run on this model or layer; says why, and what to type.

    Example:
        >>> own = OwnModel("digits")
        DigitCNN: the hook goes on block1.conv (Conv2d), which returns the shape (1, 16, 28, 28).
        >>> own.layers
        4 layers: block*.conv (3), head.linear

    """

    def __init__(
        self,
        model: nn.Module | str = "photo",
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        layer: str | None = None,
        tokenizer: Any = None,
        **_unknown: Never,
    ) -> None:
        kwargs = check_kwargs(OwnModel, kwargs, _unknown)
        chosen, given = load_model(model), bool(args or kwargs)
        self.model, self._classes = chosen.model, chosen.classes
        self._tokenizer = tokenizer or chosen.tokenizer
        self._inputs = (args, kwargs) if given else (chosen.args, chosen.kwargs)
        self._used: dict[int, Any] = {}
        self._changes: list[tuple[Tensor, Tensor]] = []
        self.title = type(self.model).__name__
        _refuse_model(self.title, self.model)
        first = next(iter(find_tensors([*self._inputs])), torch.empty(0))
        self._ids = first if first.dim() == 2 and not first.is_floating_point() else None  # of a text
        seen = self._run(layer)
        found = {call.layer: find_first(call.output) for call in reversed(seen.calls) if call.returned}
        self.name = self._choose_layer(seen, found, layer)
        self.layer = self.model.get_submodule(self.name)
        calls, what = seen[self.name].calls, type(seen[self.name].calls[0].output)
        does = f"is called {len(calls)} times and returns " if len(calls) > 1 else "returns "
        path, first = self._find(calls[0].output)
        does += "" if issubclass(what, Tensor) else f"{_name_type(what)}; its first tensor, {keystr(path)}, has "
        shape = tuple(first.shape)
        say(f"{self.title}: the hook goes on {self._describe(self.name)}, which {does}the shape {shape}.")
        if any(isinstance(each, PackedSequence) for each in (calls[0].output, *_items(calls[0].output))):
            say("It is a PackedSequence: step 0 of all sequences comes first, then step 1 of all, and so on.")

    @property
    def args(self) -> Any:
        """The positional arguments, copied."""
        return self._copy(0)

    @property
    def kwargs(self) -> Any:
        """The keyword arguments, copied."""
        return self._copy(1)

    def _copy(self, place: int) -> Any:
        try:
            self._used[place] = copy.deepcopy(self._inputs[place])
        except RuntimeError:  # torch copies no tensor that was computed from one that requires grad
            self._used[place] = self._inputs[place]
        return self._used[place]

    def _run(self, asked: str | None) -> Capture:
        """Run the model once, and keep what layers with weights, the middle block, and the one asked for returned."""
        names = [name for name, leaf in hookscope.leaves(self.model).items() if any(True for _ in leaf.parameters())]
        lists = {name: module for name, module in self.model.named_modules() if isinstance(module, nn.ModuleList)}
        outer = max(lists, key=lambda name: (not re.search(r"\b\d+\b", name), len(lists[name])), default="")
        blocks = [*lists.get(outer, ())]
        self._block = blocks[len(blocks) // 2 :][:1]
        try:
            more = {} if asked is None else hookscope.find_layers(self.model, asked)
        except LookupError as error:
            raise OwnModelError(str(error)) from error
        if not names and not more:
            raise OwnModelError(f"{self.title} has no layer with weights, so there is no layer for the hook.")
        try:
            with hookscope.capture(self.model, *names, *more, *self._block) as seen:
                self.model(*self.args, **self.kwargs)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
            only = self._inputs[0][0] if len(self._inputs[0]) == 1 and not self._inputs[1] else None
            way = "Pass what you pass when you call the model, as in OwnModel(model, x)"
            if isinstance(only, Mapping):
                way = "You passed a dict as one argument; if its keys are names of arguments, pass it as kwargs="
            elif isinstance(only, tuple | list):
                way = (
                    f"You passed a {type(only).__name__} as one argument; to pass its items, write OwnModel(model, *it)"
                )
            raise OwnModelError(
                f"{self.title} cannot run on these inputs: {said}. {way}. Names go into kwargs={{'input_ids': ids}}."
            ) from error
        self.layers = _Layers((name, self.model.get_submodule(name)) for name in seen if name in names)
        return seen

    def _choose_layer(self, seen: Capture, found: Mapping[str, tuple[Path, Tensor] | None], asked: str | None) -> str:
        if asked is not None:
            name = next(iter(hookscope.find_layers(self.model, asked)))
            if not found.get(name):
                why = "it returns no dense floating-point tensor" if name in seen else "it is not called in a pass"
                raise OwnModelError(f"The hook cannot go on {self._describe(name)}, because {why}. {self._offer(name)}")
            return name

        def rate(name: str) -> tuple[bool, ...]:
            layer, first = self.model.get_submodule(name), found[name]
            odd = isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or len(seen[name].calls) > 1
            odd |= first is None or not 2 <= first[1].dim() <= 5 or all(each.dim() < 2 for each in layer.parameters())
            conv = isinstance(layer, _CONVS) and self._ids is None
            return odd, not conv, layer not in self._block, name in seen.overwritten

        if not (fit := [name for name in seen if found.get(name)]):
            raise OwnModelError(f"{self.title} calls no layer with weights that returns a dense floating-point tensor.")
        return min(fit, key=rate)

    def _offer(self, name: str) -> str:
        near = sorted({*self.layers} - {name}, key=lambda other: (-len(commonprefix([other, name])), other))[:4]
        return f"Choose a layer near it, such as {', '.join(near)}."

    def _describe(self, name: str) -> str:
        return f"{name or 'the model itself'} ({type(self.model.get_submodule(name)).__name__})"

    @property
    def chain(self) -> dict[nn.Module, str]:
        """The modules from the model down to the layer, each with its name."""
        parts = self.name.split(".") if self.name else []
        names = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
        return {
            module: name or self.title
            for name in names
            # A list or a dict of modules is never called, but a subclass of one can have a forward.
            if type(module := self.model.get_submodule(name)).forward is not nn.Module.forward
        }

    def choose_hooks(self, layers: list[nn.Module]) -> tuple[list[nn.Module], list[str]]:
        """Leave out modules that take no full backward hook, as a pass shows; also list the kinds of hooks.

        If the layer itself takes none, all modules stay, with forward hooks alone.
        """
        kinds = ["forward_pre", "forward", "full_backward_pre", "full_backward"]
        fit = [layer for layer in layers if self._takes(layer, kinds)]
        if out := [layer for layer in layers if layer not in fit]:
            names = ", ".join(self._describe(name) for name in hookscope.find_layers(self.model, *out))
            how = f"{'are' if out[1:] else 'is'} left out"
            if self.layer in out:
                fit, kinds, how = layers, kinds[:2], "can have no full backward hook, so you see the forward hooks"
            say(f"{names} {how}: with full backward hooks there, torch refuses an in-place operation.")
        return fit, kinds

    def _takes(self, layer: nn.Module, kinds: list[str]) -> bool:
        try:
            with hookscope.record(self.model, layer, kinds=kinds):
                self.model(*self.args, **self.kwargs)
        except hookscope.FullBackwardHookError:
            return False
        return True

    def pick(self, value: Any) -> Tensor:
        """Return the first dense floating-point tensor of an output, which can be a tuple or a dict."""
        return self._find(value)[1]

    def change(self, value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """Return a value of the same structure, in which another tensor replaces that of `pick`."""
        path, old = self._find(value)
        try:
            new = change(old)
        except (IndexError, RuntimeError) as error:
            what = f"the tensor of {self._describe(self.name)} has the shape {tuple(old.shape)}"
            raise OwnModelError(f"The hook cannot change it: {what}. {error}. {self._offer(self.name)}") from error
        self._changes.append((old, new))
        return replace_at(value, path, new)

    def _find(self, value: Any) -> tuple[Path, Tensor]:
        found = find_first(value)
        if found is None:
            where = self._describe(self.name)
            raise OwnModelError(f"The hook of {where} gets no dense floating-point tensor. {self._offer(self.name)}")
        return found

    def compare(self, before: Any, after: Any) -> Table:
        """Compare two outputs of the model, tensor by tensor."""
        first, last = list_tensors(before), list_tensors(after)
        one, other = (list_tensors(self.model(*self.args, **self.kwargs)) for _ in range(2))
        if any(not torch.equal(tensor.nan_to_num(), other[name].nan_to_num()) for name, tensor in one.items()):
            say("Two calls without a hook differ, too, so not every change in the table comes from the hook.")
        if not any(tensor.numel() for tensor in (*first.values(), *last.values())):
            say(f"Both outputs of {self.title} are empty, so they cannot show whether the hook changes anything.")
        self._explain(after)
        if ranked := find_ranked(first):
            say(
                "The rows are sorted by score, so row 0 can be another object with the hook. See how many rows are new."
            )
        mask, generates = self.kwargs.get("attention_mask"), getattr(self.model, "can_generate", bool)()
        comparison = OutputComparison(self._classes, self._tokenizer, mask, generates)
        rows = [comparison.compare(name, first.get(name), last.get(name), name in ranked) for name in first | last]
        return Table(rows, caption=f"The output of {self.title}, without the hook and with it")

    def _explain(self, after: Any) -> None:
        """Say what the table cannot show: a hook without effect, values from before the hook, caches."""
        changes, self._changes = self._changes, []
        if changes and all(torch.equal(*pair) for pair in changes):
            shape = tuple(changes[0][0].shape)
            one = " It has one position on axis 1: reversing it changes nothing." if shape[1:2] == (1,) else ""
            say(f"The hook changed no value of the tensor of {self._describe(self.name)}, of the shape {shape}.{one}")
        for path, tensor in find_paths(after, objects=False):
            if any(tensor is old for old, _ in changes):
                say(f"{keystr(path)} was stored before the hook could change it, so it does not show the change.")
        shown = {path[:1] for path, _ in find_paths(after, objects=False)}
        for path in dict.fromkeys(path[:1] for path, _ in find_paths(after) if path[:1] not in shown):
            say(f"{keystr(path)} ({type(path[0].get(after)).__name__}) is not compared.")

    def draw(self, *outputs: Tensor) -> Picture:
        """Draw what the first call returned: a map for each channel of an image; else the first sample in one map."""
        output = outputs[0].detach()
        often = f" from call 1 of {len(outputs)}" if len(outputs) > 1 else ""
        title = f"{self.title}: an output of the shape {tuple(output.shape)}{often}"
        if output.dim() > 2 and len(output) > 1:
            title += ", sample 0"
        if output.dim() > 3:
            title += ", at 0 on axis 2" * (output.dim() > 4)
            return hookscope.feature_grid(output[(slice(None),) * 2 + (0,) * (output.dim() - 4)], title=title)
        axes = ("row", "column") if output.dim() == 3 else ("row", "feature")
        if output.dim() == 3 and isinstance(self.layer, nn.Conv1d):
            axes = ("channel", "position")
        elif output.dim() == 3 and self._ids is not None and output.shape[:2] == self._ids.shape:
            return self._draw_tokens(output[0], title)
        return draw_rows(output[0] if output.dim() == 3 else output.reshape(-1, output.shape[-1]), title, *axes)

    def _draw_tokens(self, output: Tensor, title: str) -> Picture:
        """Draw the rows of the first text, without those of padding, which would set the scale."""
        assert self._ids is not None
        mask = self.kwargs.get("attention_mask")
        fits = isinstance(mask, Tensor) and mask.shape == self._ids.shape
        real = (mask[0] if fits else torch.ones(len(output))).bool().nonzero().flatten().tolist()
        title += f", without {len(output) - len(real)} rows of padding" * (len(real) < len(output))
        words = [str(at) for at in real]
        if self._tokenizer is not None:
            words = [repr(self._tokenizer.decode([int(self._ids[0, at])])) for at in real]
        return draw_rows(output[real], title, "token", "feature", words)

    def backward(self, output: Any) -> None:
        """Compute gradients of the sum of the largest value of each sample, in each output. No `.grad` changes."""
        scores = [tensor for _, tensor in find_paths(output, objects=False) if tensor.requires_grad and tensor.numel()]
        wanted = [*self.model.parameters(), *find_tensors([*self._used.values()])]
        wanted = [tensor for tensor in wanted if tensor.requires_grad]
        if scores:
            real = [score for score in scores if score.is_floating_point()] or [scores[0].abs()]
            best = [each.flatten(1).amax(1) if each.dim() > 1 else each for each in real]
            torch.autograd.grad(torch.stack([each.float().sum() for each in best]).sum(), wanted, allow_unused=True)
        elif any(tensor.requires_grad for _, tensor in find_paths(output, objects=False)):
            say(f"No gradient flows through {self.title}, because its output is empty: it detected nothing.")
        elif wanted:
            say(f"No gradient flows through {self.title}, because its output does not require grad.")
        else:
            way = "own.model.requires_grad_(True) makes them trainable"
            say(f"No gradient flows through {self.title}, because its parameters are frozen; {way}.")

    def list_pitfalls(self, seen: Capture) -> Table:
        """List the pitfalls that wait in the layers of a capture of one pass, with an example of each."""
        calls = seen.calls
        found: dict[tuple[str, str], list[str]] = {
            ("not called", "put the hook on a layer that is called"): [*seen.uncalled],
            ("called more than once", "keep the outputs in a list"): [c.layer for c in calls if c.number == 2],
            ("output overwritten", "keep output.detach().clone()"): [c.layer for c in calls if c.overwritten_by],
            ("no tensor returned", "return the same type"): [
                c.layer for c in calls if not isinstance(c.output, Tensor)
            ],
            ("hook already there", "ask who needs it"): [e.layer or "" for e in hookscope.census(self.model)],
        }
        rows: list[dict[str, object]] = []
        for (pitfall, advice), names in found.items():
            row: dict[str, object] = {"pitfall": pitfall, "layers": len({*names})}
            rows.append(row | ({"for example": self._describe(names[0]), "what to do": advice} if names else {}))
        return Table(rows, caption=f"{self.title}: the pitfalls in its layers")


def _name_type(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else ()


def _refuse_model(title: str, model: nn.Module) -> None:
    modules = list(model.modules())
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise OwnModelError(
            f"{title} is TorchScript, which runs only some hooks. Pass the model that you scripted or traced."
        )
    if any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in modules):
        raise OwnModelError(f"{title} is compiled, so torch can ignore new hooks. Pass the model that you compiled.")
    if any(module.training for module in modules):
        raise OwnModelError(
            f"{title} is in train mode, where dropout and batch norm change from call to call, so you could not tell "
            "what the hook changed. Call model.eval() first."
        )
