"""Run a model once and keep the stream after each block, the attention maps, and the logit lens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call
from hookscope.captures.capture import capture
from hookscope.captures.recorder import CaptureTooLargeError
from hookscope.interp.attentions import AttentionMap, attention
from hookscope.interp.lenses.blocks import (
    NoBlocksError,
    find_blocks,
    find_runs,
    first_tensor,
    is_stream,
    is_tokens_first,
    passes_stream_on,
)
from hookscope.interp.lenses.lens import Lens, LensSpec, OuterCall, find_lens, find_outer_modules, parse_lens
from hookscope.interp.lenses.reading import Reading, read_streams
from hookscope.interp.lenses.texts import find_token_ids
from hookscope.layers import LayerNotFoundError, Modules, Which, pick
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors

__all__ = ["Streams"]

_MOST_BYTES = 4 << 30
_NO_LENS = (
    "no lens found: hookscope could not follow the stream from the last layer to a linear layer that makes the output. "
    "Name the modules, as lens=('norm', 'head'), or pass a function"
)
_OTHER_LENS = (
    "after the last layer the lens differs from the logits of the model by up to {:.2g} (the largest logit is "
    "{:.3g}), so the model computes more there than {}. Pass a function as lens= that does the same computation"
)


class Streams:
    """Run a sequence model and keep its residual stream after each block, and its attention maps.

    It finds the blocks and the logit lens itself. Details and limits: https://hookscope.github.io/hookscope/limits/lenses.html

    Args:
        model: any module.
        args: positional arguments for the model.
        kwargs: keyword arguments for the model.
        layers: names, globs or types of the blocks; by default, hookscope finds them.
        lens: names of modules, or a function, that turn a stream into logits (batch, tokens, words).
        max_bytes: raise `MemoryError` if the streams or the attention maps need more; None for no limit.

    Attributes:
        title, labels: the class of the model, and its blocks in call order; ``"block#2"`` is a second call.
        samples, tokens: the size of the batch, and the number of positions.
        lens, maps: the `Lens` or None, and all attention maps.
        apart: whether each block returns the sum of its input, its attention's output and another module's output.
        ids: the token IDs, [batch, tokens], if the model got integers of this shape.
        causal: whether no token attends to a later one; None without a map.
        tokens_first: whether the streams of the model are (tokens, batch, width).
        notes, warned: remarks about the result, and warnings raised in the pass.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> streams = Streams(net, (torch.ones(1, 5, 8),))
        >>> streams.labels, streams.reading(0).norm.shape
        (['layers.0', 'layers.1', 'layers.2'], torch.Size([3, 5]))

    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        layers: Which | Sequence[Which] | None = None,
        lens: LensSpec = None,
        max_bytes: float | None = _MOST_BYTES,
    ) -> None:
        if not isinstance(args, (tuple, list)):
            kind = type(args).__name__
            raise TypeError(f"args is of type {kind}. Pass the arguments of the model as a tuple: Streams(model, (x,))")
        self._modules = Modules(model)
        self.title = type(model).__name__
        self._args, self._kwargs, self._max_bytes = tuple(args), dict(kwargs or {}), max_bytes
        named = _pick_named(self._modules, layers)
        wanted = parse_lens(self._modules, lens)
        self.notes: list[str] = []
        self.warned: list[str] = []
        with self._evaluating(), _explain_memory_error(max_bytes):
            self._calls, self._fed = self._guess() if not named else (None, {})
            if self._calls is None:
                run = named or self._name(find_blocks(self._modules, self._args, self._kwargs))
                self._calls, self._fed = self._pass(run)
            self._take(wanted)
        self._readings: dict[int, Reading] = {}

    def _name(self, blocks: Sequence[nn.Module]) -> dict[str, nn.Module]:
        return {self._modules.names[block]: block for block in blocks}

    def _guess(self) -> tuple[list[Call] | None, dict[tuple[str, int], Call]]:
        """Run the model if it has a single candidate for blocks; return None if the candidate passes no stream on."""
        runs = find_runs(self._modules)
        if len(runs) != 1:
            return None, {}
        try:
            calls, fed = self._pass(self._name(runs[0]))
        except (NoBlocksError, LayerNotFoundError):
            return None, {}
        first = [call for call in fed.values() if call.layer in self.blocks]
        return (calls, fed) if passes_stream_on(first) else (None, {})

    def _pass(self, run: Mapping[str, nn.Module]) -> tuple[list[Call], dict[tuple[str, int], Call]]:
        """Run the model. Return all captured calls, and those captured with their inputs."""
        model, names = self._modules.model, self._modules.names
        blocks = list(run.values())
        others = find_outer_modules(self._modules, blocks)
        parts = [child for block in blocks for child in block.children() if child not in run.values()]
        limit: Any = self._max_bytes
        with (
            capture(model, "", *blocks, *parts, *others, max_bytes=limit) as seen,
            capture(model, *blocks[:2], *others, inputs=True, max_bytes=limit) as fed,
        ):
            self.maps = attention(model, *self._args, kwargs=self._kwargs, max_bytes=limit)
        self.blocks = {names[block]: (name, block) for name, block in run.items()}
        for found, (name, _) in self.blocks.items():
            if found not in seen:
                raise LayerNotFoundError(f"layer {name!r} {seen.uncalled.get(found, 'was not called')}", name)
        calls = [*seen.calls]
        for call in calls:
            if call.layer in self.blocks and not is_stream(first_tensor(call.output)):
                shapes = [tuple(tensor.shape) for tensor in find_tensors(call.output)]
                raise NoBlocksError(
                    f"layer {call.label!r} returned {shapes[0] if shapes else 'no tensor'}, not a residual stream "
                    "(batch, tokens, width). Name other layers: layers='blocks.*'"
                )
        return calls, {(call.layer, call.number): call for call in fed.calls}

    def _take(self, wanted: Lens | None) -> None:
        """Store the streams, the lens and the logits of the pass."""
        assert self._calls is not None
        of_blocks = [call for call in self._calls if call.layer in self.blocks]
        self.tokens_first = self._tokens_first(first_tensor(of_blocks[0].output))
        self._streams = [self._turned(first_tensor(call.output)) for call in of_blocks]
        sizes = {tuple(stream.shape[:2]) for stream in self._streams}
        if len(sizes) > 1:
            raise NoBlocksError(
                f"the streams of these layers have different (batch, tokens): {sorted(sizes)}. Name layers whose "
                "streams agree: layers='blocks.*'"
            )
        self.samples, self.tokens = sizes.pop()
        names = [self.blocks[call.layer][0] for call in of_blocks]
        counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
        self.labels = [
            f"{name or '(root)'}{f'#{count}' if count > 1 else ''}" for name, count in zip(names, counts, strict=True)
        ]
        self._layers = [(call.layer, count) for call, count in zip(of_blocks, counts, strict=True)]
        self._before = self._given_to(of_blocks[0])
        self._added = self._take_apart()
        self.apart = bool(self._added)
        self.ids = find_token_ids(self._args, self._kwargs, self.samples, self.tokens, self.tokens_first)
        self.causal = self._is_causal()
        returned = next(call.output for call in self._calls if call.layer == "")
        self.lens = wanted or find_lens(self._modules, self._streams[-1], list(self._after(of_blocks[-1])), returned)
        self.words = 0
        self._logits: Tensor | None = None
        if self.lens is None:
            self.notes.append(_NO_LENS)
        else:
            piece = self._streams[-1][:1] if self.lens.function else self._streams[-1][:1, :1]
            self.words = self.lens(piece).shape[-1]
            self._logits = self._logits_in(returned)
        self._calls, self._fed = None, {}

    # -- evaluate the pass ----------------------------------------------------------------------------------------

    def _tokens_first(self, stream: Tensor) -> bool:
        """Return whether streams are (tokens, batch, width), by the shapes of the maps, or else by the modules."""
        queries = {each.weights.shape[2] for each in self.maps.values() if self._around(each.layer)}
        batch, tokens = stream.shape[0] in queries, stream.shape[1] in queries
        return batch if batch != tokens else is_tokens_first([block for _, block in self.blocks.values()])

    def _around(self, layer: str) -> str | None:
        """Return the name of the block that contains a layer, or that is the layer."""
        for block in self.blocks:
            if layer == block or not block or layer.startswith(f"{block}."):
                return block
        return None

    def _turned(self, stream: Tensor) -> Tensor:
        return stream.transpose(0, 1) if self.tokens_first else stream

    def _take_apart(self) -> list[tuple[Tensor, Tensor]]:
        """Return the summands of attention and of the rest of each block; [] if a block does not add these two."""
        assert self._calls is not None
        found, before = list[tuple[Tensor, Tensor]](), self._before
        looks = [each.layer for each in self.maps.values()]
        starts = [place for place, call in enumerate(self._calls) if call.layer in self.blocks]
        for start, end in zip(starts, [*starts[1:], len(self._calls)], strict=True):
            block, *inside = self._calls[start:end]
            stream = self._turned(first_tensor(block.output))
            if before is None or before.shape != stream.shape:
                return []
            attention, others = list[Tensor](), list[Tensor]()
            for call in inside:
                value = first_tensor(call.output)
                if value is None or self._around(call.layer) != block.layer or not is_stream(value):
                    continue
                attends = any(name == call.layer or name.startswith(f"{call.layer}.") for name in looks)
                if (turned := self._turned(value)).shape == stream.shape:
                    (attention if attends else others).append(turned)
            if len(attention) != 1:
                return []
            rest = stream.double() - before.double() - attention[0].double()
            bound = 1e-3 * float(stream.double().abs().max())
            if not any(float((rest - value.double()).abs().max()) <= bound for value in others):
                return []
            found.append((attention[0], rest.to(stream.dtype)))
            before = stream
        return found

    def _given_to(self, call: Call) -> Tensor | None:
        """Return the stream that a block got as input."""
        fed, stream = self._fed.get((call.layer, call.number)), first_tensor(call.output)
        given = find_tensors((fed.args, fed.kwargs)) if fed else []
        found = next((each for each in given if is_stream(each) and each.shape == stream.shape), None)
        return None if found is None else self._turned(found)

    def _after(self, last: Call) -> Iterator[OuterCall]:
        """Yield the calls outside the blocks after the last block, with their first input and output."""
        assert self._calls is not None
        modules = {name: module for module, name in self._modules.names.items()}
        for call in self._calls[self._calls.index(last) + 1 :]:
            fed = self._fed.get((call.layer, call.number))
            if call.layer in self.blocks or not call.layer or fed is None:
                continue
            given, made = find_tensors((fed.args, fed.kwargs)), first_tensor(call.output)
            if given and made is not None:
                turned = (self._turned(each) if each.dim() == 3 else each for each in (given[0], made))
                yield OuterCall(call.layer, modules[call.layer], *turned)

    def _is_causal(self) -> bool | None:
        own = [each for label in range(len(self.labels)) for each in self.maps_at(label)]
        maps = [each.weights for each in own if each.weights.shape[3] == self.tokens]
        if not maps or self.tokens < 2:
            return None
        return all(float(weights.float().triu(1).abs().nan_to_num().max()) == 0 for weights in maps)

    def _logits_in(self, returned: Any) -> Tensor | None:
        """Return the logits in the output of the model: the tensor with as many words as the lens makes."""
        first = [returned["logits"]] if isinstance(returned, Mapping) and "logits" in returned else []
        for tensor in find_tensors([*first, returned]):
            if tensor.dim() in (2, 3) and tensor.shape[-1] == self.words and tensor.is_floating_point():
                turned = self._turned(tensor) if tensor.dim() == 3 else tensor
                if turned.shape[0] == self.samples:
                    return turned
        return None

    # -- read the results -----------------------------------------------------------------------------------------

    def reading(self, sample: int = 0) -> Reading:
        """Return the `Reading` of a sample. It is computed on the first call.

        Raises:
            IndexError: there is no such sample.

        """
        if not 0 <= sample < self.samples:
            raise IndexError(f"no sample {sample}: the batch has {self.samples}, counted from 0")
        if sample not in self._readings:
            before = None if self._before is None else self._before[sample]
            logits = None if self._logits is None else self._logits[sample]
            ids = None if self.ids is None or self.causal is False else self.ids[sample].to(self._streams[0].device)
            with self._evaluating():
                mine = [stream[sample] for stream in self._streams]
                added = [(attention[sample], rest[sample]) for attention, rest in self._added]
                self._readings[sample] = read_streams(mine, before, self.lens, logits, ids, added)
            if len(self._readings) == self.samples:  # every reading is computed
                self._streams, self._before, self._logits, self._added = [], None, None, []
        return self._readings[sample]

    def remarks(self, sample: int = 0) -> list[str]:
        """List remarks about the reading of a sample."""
        reading = self.reading(sample)
        said = [*self.notes]
        if self.lens is None:
            return said
        if reading.error is None:
            said.append(
                "the lens could not be checked, because the model returned no logits with the same number of words"
            )
        elif not reading.verified:
            said.append(_OTHER_LENS.format(reading.error, reading.largest, self.lens.describe()))
        if self.lens.position is not None:
            place = "the first" if self.lens.position == 0 else "the last"
            said.append(
                f"the model reads {place} token only. For any other token, the lens shows what the model would say if "
                f"that token were {place}"
            )
        if self.causal is False and self.ids is not None:
            said.append(
                "tokens attend to later ones, so no token predicts the next word, and no map shows next-word "
                "probabilities"
            )
        return said

    def call_at(self, layer: int) -> tuple[str, int]:
        """Return the layer at this index and the number of its call, counted from 1."""
        return self._layers[layer]

    def maps_at(self, layer: int) -> list[AttentionMap]:
        """List the attention maps of the layer at this index whose queries are the tokens."""
        name, count = self._layers[layer]
        found = [each for each in self.maps.values() if self._around(each.layer) == name]
        calls = sum(each == name for each, _ in self._layers)
        if calls > 1 and len(found) % calls == 0:
            size = len(found) // calls
            found = found[(count - 1) * size : count * size]
        return [
            each for each in found if each.weights.shape[0] == self.samples and each.weights.shape[2] == self.tokens
        ]

    def why_no_map(self, layer: int) -> str:
        """Return why the layer at this index has no attention map, or `""` if it has one."""
        if self.maps_at(layer):
            return ""
        if not self.maps:
            return "; ".join(self.maps.notes)
        return f"layer {self.labels[layer]!r} ran no attention over these tokens"

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        model = self._modules.model
        with (
            preserve_model(model),
            preserve_rng_state(model, self._args, self._kwargs),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.filterwarnings("always", "hookscope: ")
            with torch.no_grad():
                model.eval()
                yield
        said = [str(warning.message) for warning in caught]
        ours = [text.removeprefix("hookscope: ").split("; ") for text in said if text.startswith("hookscope: ")]
        if parts := dict.fromkeys(part for parts in ours for part in parts):  # two captures can raise the same warning
            self.warned.append("hookscope: " + "; ".join(parts))
        self.warned += [text for text in dict.fromkeys(said) if not text.startswith("hookscope: ")]


def _pick_named(modules: Modules, layers: Which | Sequence[Which] | None) -> dict[str, nn.Module]:
    """Return the layers that `layers=` names, or {} if it is None."""
    if layers is None:
        return {}
    several: list[Any] = list(layers) if isinstance(layers, list | tuple) else [layers]
    if not several:
        raise ValueError("layers=[] names no layer. Leave it out, and hookscope finds the blocks")
    return pick(modules, *several, several="layers=[*names]")


@contextmanager
def _explain_memory_error(max_bytes: float | None) -> Iterator[None]:
    """Add the fix to an error about the streams. The error about the attention maps has one already."""
    try:
        yield
    except CaptureTooLargeError as error:
        raise MemoryError(
            f"the streams and the output of the model need more than max_bytes={max_bytes:,}. Pass a shorter text, "
            "fewer samples, fewer layers=, or a larger max_bytes (None for no limit)"
        ) from error
