"""The last cell of a chapter: the reader's own model takes the place of the digit network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from posixpath import commonprefix
from typing import Any, Never

import torch
from torch import Tensor, nn

import hookscope
from hookscope.captures import Capture
from hookscope.model_inputs import check_kwargs
from hookscope.pictures import Table
from hookscope.pictures.grid import FeatureGrid
from hookscope.pytree import find_paths, find_tensors, keystr
from hookscope_course.chapters.named_models import OwnModelError, load_model, say

__all__ = ["OwnModel", "OwnModelError"]

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class OwnModel:
    """A model, its inputs, and a layer for the hook of a chapter.

    The names are "photo", "sentences", "english" and "digits", which are trained, and "resnet18" and "gpt2", with
    random weights. The model runs once, to find `layers`: those with weights that are called once, with a tensor, and
    return a tensor. The first convolution among them is `layer`; without a convolution, the first of them. `kinds` are
    the kinds of hooks that it takes. `args` and `kwargs` are new copies each time, so a cache in them does not grow.

    Args:
        model: a module in eval mode, or a name.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        layer: the name of another layer or block.

    Raises:
        OwnModelError: the hooks cannot run on this model or layer; says why, and what to type.

    Example:
        >>> own = OwnModel("digits")
        DigitCNN: the hook goes on block1.conv (Conv2d), which returns the shape (1, 16, 28, 28).
        >>> list(own.layers)
        ['block1.conv', 'block2.conv', 'block3.conv', 'head.linear']

    """

    def __init__(
        self,
        model: nn.Module | str = "photo",
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        layer: str = "",
        **_unknown: Never,
    ) -> None:
        kwargs = check_kwargs(OwnModel, kwargs, _unknown)
        chosen, given = load_model(model), bool(args or kwargs)
        self.model, self.classes = chosen.model, chosen.classes
        self._inputs = (args, kwargs) if given else (chosen.args, chosen.kwargs)
        self._used: dict[int, Any] = {}
        self.title = type(self.model).__name__
        _refuse_model(self.title, self.model)
        seen = self._run(layer)
        misfits = {name: why for name in seen if (why := _find_misfit(seen, name))}
        misfits |= dict.fromkeys(seen.uncalled, "it is not called in a pass")
        self.layers = {name: self.model.get_submodule(name) for name in seen if name not in misfits}
        self.name = self._choose_layer(misfits, seen.overwritten, layer)
        self.layer, what = self.layers[self.name], self._describe(self.name)
        self.kinds = ["forward_pre", "forward", "full_backward_pre", "full_backward"]
        say(f"{self.title}: the hook goes on {what}, which returns the shape {tuple(seen[self.name].output.shape)}.")
        if self.name in seen.overwritten:
            del self.kinds[2:]
            say(f"No full backward hook can go on {what}, because {seen.overwritten[self.name]} overwrites its output.")
        if misfits:
            (name, why), others = next(iter(misfits.items())), len(misfits) - 1
            rest = f"; {others} more {'has' if others == 1 else 'have'} such a reason" if others else ""
            say(f"The hook cannot go on {self._describe(name)}, because {why}{rest}.")

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

    def _run(self, asked: str) -> Capture:
        """Run the model once, and keep what layers with weights, and the one asked for, got and returned."""
        names = [name for name, layer in hookscope.leaves(self.model).items() if _has_weights(layer)]
        if asked and asked not in names:
            try:
                names += hookscope.find_layers(self.model, asked)
            except LookupError as error:
                raise OwnModelError(str(error)) from error
        if not names:
            raise OwnModelError(f"{self.title} has no layer with weights, so there is no layer for the hook.")
        try:
            with hookscope.capture(self.model, *names, inputs=True) as seen:
                self.model(*self.args, **self.kwargs)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
            raise OwnModelError(
                f"{self.title} cannot run on these inputs: {said}. Pass what you pass when "
                "you call the model, as in OwnModel(model, x) or OwnModel(model, kwargs={'input_ids': ids})."
            ) from error
        return seen

    def _choose_layer(self, misfits: Mapping[str, str], overwritten: Mapping[str, str], asked: str) -> str:
        if not self.layers:
            name, why = next(iter(misfits.items()))
            raise OwnModelError(f"{self.title} has no layer for the hook: not {self._describe(name)}, because {why}.")
        if asked and asked not in self.layers:
            near = sorted(self.layers, key=lambda name: -len(commonprefix([name, asked])))[:4]
            why = f"the hook cannot go on {self._describe(asked)}, because {misfits[asked]}"
            raise OwnModelError(f"{why}. Choose a layer near it, such as {', '.join(near)}.")

        def rate(name: str) -> tuple[bool, bool]:
            return not isinstance(self.layers[name], _CONVS), name in overwritten

        return asked or min(self.layers, key=rate)

    def _describe(self, name: str) -> str:
        return f"{name or 'the model itself'} ({type(self.model.get_submodule(name)).__name__})"

    @property
    def chain(self) -> dict[nn.Module, str]:
        """The modules from the model down to the layer, each with its name."""
        parts = self.name.split(".") if self.name else []
        names = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
        return {self.model.get_submodule(name): name or self.title for name in names}

    def compare(self, before: Any, after: Any) -> Table:
        """Compare two outputs of the model, tensor by tensor."""
        first, last = _list_tensors(before), _list_tensors(after)
        one, other = (_list_tensors(self.model(*self.args, **self.kwargs)) for _ in range(2))
        if any(not torch.equal(tensor.nan_to_num(), other[name].nan_to_num()) for name, tensor in one.items()):
            say("Two calls without a hook differ, too, so not every change in the table comes from the hook.")
        if not any(tensor.numel() for tensor in (*first.values(), *last.values())):
            say(f"Both outputs of {self.title} are empty, so they cannot show whether the hook changes anything.")
        if ranked := _find_ranked(first):
            say("The rows are sorted by score, so row 0 can be another object with the hook: compare the best score.")
        rows = [self._compare_tensors(name, first.get(name), last.get(name), name in ranked) for name in first | last]
        return Table(rows, caption=f"The output of {self.title}, without the hook and with it")

    def _compare_tensors(self, name: str, old: Tensor | None, new: Tensor | None, ranked: bool) -> dict[str, object]:
        shapes = ["missing" if tensor is None else str(tuple(tensor.shape)) for tensor in (old, new)]
        row: dict[str, object] = {"output": name or "the output", "shape": " → ".join(dict.fromkeys(shapes))}
        if ranked:
            for when, scores in (("highest without", old), ("highest with", new)):
                if name.endswith("['scores']") and scores is not None and scores.numel():
                    row[when] = f"{scores.max().item():.3f}"
            return row
        if old is None or new is None or old.shape != new.shape or not old.numel():
            return row
        old, new = self._drop_padding(old), self._drop_padding(new)
        if old.dtype == torch.float64:
            row["largest change"] = (new - old).abs().max().item()
        else:
            row["different values"] = f"{int((new != old).sum())} of {old.numel()}"
        if "logits" in name or (old.dim() == 2 and not name):
            pairs = [tensor.reshape(-1, tensor.shape[-1]) for tensor in (old, new)]
            changed = (pairs[0].argmax(-1) != pairs[1].argmax(-1)).nonzero().flatten().tolist()
            shown, count = (changed or [len(pairs[0]) - 1])[0], len(pairs[0])
            for when, logits in zip(("highest without", "highest with"), pairs, strict=True):
                best = int(logits[shown].argmax())
                sure = f"{self.classes[best]}, {logits[shown].softmax(0)[best].item():.1%}" if self.classes else ""
                row[when] = f"row {shown}: " * (count > 1) + (sure or f"index {best}")
            if count > 1:
                row["rows with another highest"] = f"{len(changed)} of {count}"
        return row

    def _drop_padding(self, tensor: Tensor) -> Tensor:
        mask = self.kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2 and tensor.shape[:2] == mask.shape and not mask.all():
            return tensor[mask.cpu().bool()]
        return tensor

    def draw(self, output: Tensor) -> FeatureGrid:
        """Draw an output of a layer: a map for each channel of an image; else one map of the first sample."""
        title = f"{self.title}: an output of the shape {tuple(output.shape)}"
        if output.dim() == 4:
            return hookscope.feature_grid(output, title=title)
        axes = ("channel", "position") if isinstance(self.layer, _CONVS) else ("row", "feature")
        whole = output if output.dim() == 2 else output[0]
        return hookscope.feature_grid(whole, title=title, axes=axes)

    def backward(self, output: Any) -> None:
        """Compute gradients of the largest value of each output. The `.grad` of the parameters does not change."""
        scores = [tensor for _, tensor in find_paths(output, objects=False) if tensor.requires_grad and tensor.numel()]
        wanted = [*self.model.parameters(), *find_tensors([*self._used.values()])]
        wanted = [tensor for tensor in wanted if tensor.requires_grad]
        if scores:
            best = [score.max() for score in scores if score.is_floating_point()] or [scores[0].abs().max()]
            torch.autograd.grad(torch.stack([each.float() for each in best]).sum(), wanted, allow_unused=True)
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


def _has_weights(layer: nn.Module) -> bool:
    embedding = isinstance(layer, (nn.Embedding, nn.EmbeddingBag))  # its input is integers
    return not embedding and any(weight.dim() > 1 for weight in layer.parameters(recurse=False))


def _find_misfit(seen: Capture, name: str) -> str:
    """Say why the hooks of the chapters do not fit a layer that was called; '' if they do."""
    calls = [call for call in seen.calls if call.layer == name]
    args, output = calls[0].args, calls[0].output
    if len(calls) > 1:
        return f"it is called {len(calls)} times in a pass, and one tensor for it would be wrong"
    if not isinstance(output, Tensor):
        return f"it returns a {type(output).__name__}, and the hook would have to return one, too"
    if not args or not isinstance(args[0], Tensor):
        return "its input has a name, and is not in `args`"
    if any(each.layout is not torch.strided or not each.is_floating_point() for each in (args[0], output)):
        return "its input or output is not a dense tensor of floating-point numbers"
    return (
        ""
        if 2 <= output.dim() <= 4 and output.numel()
        else f"it returns the shape {tuple(output.shape)}, not 2 to 4 axes"
    )


def _find_ranked(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return what stands beside `scores` that fall from row to row, as a detector returns them."""
    ranked = set[str]()
    for name, scores in tensors.items():
        if name.endswith("['scores']") and scores.dim() == 1 and scores.numel() and bool((scores.diff() <= 0).all()):
            ranked |= {each for each in tensors if each.rpartition("[")[0] == name.rpartition("[")[0]}
    return ranked


def _list_tensors(output: Any) -> dict[str, Tensor]:
    """List the dense tensors of an output by where they are in it, without the caches of language models."""
    found = {keystr(path): tensor.detach().cpu() for path, tensor in find_paths(output, objects=False)}
    real = {name: torch.view_as_real(each) if each.is_complex() else each for name, each in found.items()}
    kept = {name: each for name, each in real.items() if each.layout is torch.strided}
    return {name: each.double() if each.is_floating_point() else each for name, each in kept.items()}
