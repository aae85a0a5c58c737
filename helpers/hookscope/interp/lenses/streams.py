"""Run a model once and keep the stream after each block, the attention maps, and what is needed to read words there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call
from hookscope.captures.capture import capture
from hookscope.interp.attentions import AttentionMap, attention
from hookscope.interp.lenses.blocks import (
    NoBlocksError,
    first_tensor,
    follows,
    is_stream,
    probed_run,
    runs_of,
    tokens_first,
)
from hookscope.interp.lenses.lens import Given, Lens, Step, found_lens, given_lens, outside
from hookscope.interp.lenses.reading import Reading, read
from hookscope.interp.lenses.texts import numbers_in
from hookscope.layers import LayerNotFoundError, Modules, Which, pick
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors

__all__ = ["Streams"]

_MOST_BYTES = 4 << 30
_NO_LENS = (
    "no lens: after the last layer the stream does not go on, through a norm or straight, to a linear layer that makes "
    "what the model returns; name the modules, as lens=('norm', 'head'), or give a function"
)
_OTHER_LENS = (
    "the lens's last row is not what the model returned, by up to {:.2g} (its logits are up to {:.3g}): between the "
    "last layer and its logits the model does more than {}; give that as lens="
)


class Streams:
    """What one pass of a sequence model left: the stream after each layer, and the attention maps.

    The model runs once, in `eval()` and without gradients; where it cannot be told from the modules alone which are its
    blocks, it runs a second time before, and only shapes and statistics are kept of that. Training flags, buffers and
    random numbers are put back, and no hook stays.

    The stream after a layer is what it returned, or the first of what it returned: (batch, tokens, width). The layers
    are the longest run of modules of one class, side by side in a ModuleList or Sequential, that hand such a stream on.

    Args:
        model: any module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        layers: names, globs or types of the layers instead of those that are found.
        lens: names of modules, or a function, that make logits (batch, tokens, words) of a stream; without it, the
            modules through which the model itself sends the last stream, followed through the pass: to a linear layer,
            and in transformers to `get_output_embeddings()`.
        max_bytes: refuse streams and outputs, or attention maps, that take more than this; None for no limit.

    Attributes:
        title: class name of the model.
        labels: the layers, in the order of their calls; ``"block#2"`` is a second call.
        samples: how many there are in the batch.
        tokens: how many positions each has.
        lens: what makes words of a stream; None if there is nothing.
        ids: the numbers of the tokens, [batch, tokens], if integers of that shape came in.
        causal: whether no token looks at a later one, in any of the maps; None if there is no map of them.
        tokens_first: whether the model's own streams are (tokens, batch, width).
        maps: all attention maps of the pass.
        notes: what else to know.
        warned: what hookscope and the model warned about in the pass.

    Raises:
        NoBlocksError: a ValueError; no layers return streams, or not all that were named.
        LayerNotFoundError: there is no such layer, or it was not called.
        MemoryError: the pass would keep more than `max_bytes`; says the way out.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> streams = Streams(net, (torch.ones(1, 5, 8),))
        >>> streams.labels, streams.tokens, streams.reading(0).norm.shape
        (['layers.0', 'layers.1', 'layers.2'], 5, torch.Size([3, 5]))
        >>> streams.lens is None
        True

    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        layers: Which | Sequence[Which] | None = None,
        lens: Given = None,
        max_bytes: float | None = _MOST_BYTES,
    ) -> None:
        self._modules = Modules(model)
        self.title = type(model).__name__
        self._args, self._kwargs, self._max_bytes = tuple(args), dict(kwargs or {}), max_bytes
        named = _named(self._modules, layers)
        wanted = given_lens(self._modules, lens)
        self.notes: list[str] = []
        self.warned: list[str] = []
        with self._evaluating(), _with_the_way_out(max_bytes):
            self._calls, self._fed = self._guess() if not named else (None, {})
            if self._calls is None:
                run = named or self._name(probed_run(self._modules, self._args, self._kwargs))
                self._calls, self._fed = self._pass(run)
            self._take(wanted)
        self._readings: dict[int, Reading] = {}

    def _name(self, blocks: Sequence[nn.Module]) -> dict[str, nn.Module]:
        return {self._modules.names[block]: block for block in blocks}

    def _guess(self) -> tuple[list[Call] | None, dict[tuple[str, int], Call]]:
        """Run the model with the only run of blocks that it has; None if it has several, or these are no blocks."""
        runs = runs_of(self._modules)
        if len(runs) != 1:
            return None, {}
        try:
            calls, fed = self._pass(self._name(runs[0]))
        except (NoBlocksError, LayerNotFoundError):
            return None, {}
        first = [call for call in fed.values() if call.layer in self.blocks]
        return (calls, fed) if follows(first) else (None, {})

    def _pass(self, run: Mapping[str, nn.Module]) -> tuple[list[Call], dict[tuple[str, int], Call]]:
        """Run the model; return every call that was watched, and those of which the inputs were kept."""
        model, names = self._modules.model, self._modules.names
        blocks = list(run.values())
        others = outside(self._modules, blocks)
        limit: Any = self._max_bytes
        with (
            capture(model, "", *blocks, *others, max_bytes=limit) as seen,
            capture(model, *blocks[:2], *others, inputs=True, max_bytes=limit) as fed,
        ):
            self.maps = attention(model, *self._args, max_bytes=limit, **self._kwargs)
        self.blocks = {names[block]: (name, block) for name, block in run.items()}
        for found, (name, _) in self.blocks.items():
            if found not in seen:
                raise LayerNotFoundError(f"layer {name!r} {seen.uncalled.get(found, 'was not called')}", name)
        last = max(call.run for call in seen.calls)  # attention() begins anew where it needs a forecast
        calls = [call for call in seen.calls if call.run == last]
        for call in calls:
            if call.layer in self.blocks and not is_stream(first_tensor(call.output)):
                shapes = [tuple(tensor.shape) for tensor in find_tensors(call.output)]
                raise NoBlocksError(
                    f"layer {call.label!r} returned {shapes[0] if shapes else 'no tensor'}, and not a stream: (batch, "
                    "tokens, width); name other layers with layers="
                )
        return calls, {(call.layer, call.number): call for call in fed.calls if call.run == last}

    def _take(self, wanted: Lens | None) -> None:
        """Keep of the calls what is to be shown."""
        assert self._calls is not None
        of_blocks = [call for call in self._calls if call.layer in self.blocks]
        self.tokens_first = self._tokens_first(first_tensor(of_blocks[0].output))
        self._streams = [self._turned(first_tensor(call.output)) for call in of_blocks]
        sizes = {tuple(stream.shape[:2]) for stream in self._streams}
        if len(sizes) > 1:
            raise NoBlocksError(
                f"these layers have streams of different (batch, tokens): {sorted(sizes)}; name others with layers="
            )
        self.samples, self.tokens = sizes.pop()
        names = [self.blocks[call.layer][0] for call in of_blocks]
        counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
        self.labels = [
            f"{name or '(root)'}{f'#{count}' if count > 1 else ''}" for name, count in zip(names, counts, strict=True)
        ]
        self._layers = [(call.layer, count) for call, count in zip(of_blocks, counts, strict=True)]
        self._before = self._given_to(of_blocks[0])
        self.ids = numbers_in(self._args, self._kwargs, self.samples, self.tokens, self.tokens_first)
        self.causal = self._is_causal()
        returned = next(call.output for call in self._calls if call.layer == "")
        self.lens = wanted or found_lens(self._modules, self._streams[-1], list(self._after(of_blocks[-1])), returned)
        self.words = 0
        self._logits: Tensor | None = None
        if self.lens is None:
            self.notes.append(_NO_LENS)
        else:
            piece = self._streams[-1][:1] if self.lens.function else self._streams[-1][:1, :1]
            self.words = self.lens(piece).shape[-1]
            self._logits = self._logits_in(returned)
        self._calls, self._fed = None, {}

    # -- what came out of the pass ------------------------------------------------------------------------------

    def _tokens_first(self, stream: Tensor) -> bool:
        """Whether streams are (tokens, batch, width): as the maps say, or else the modules."""
        queries = {each.weights.shape[2] for each in self.maps.values() if self._around(each.layer)}
        batch, tokens = stream.shape[0] in queries, stream.shape[1] in queries
        return batch if batch != tokens else tokens_first([block for _, block in self.blocks.values()])

    def _around(self, layer: str) -> str | None:
        """Name the block that a layer is, or is in."""
        for block in self.blocks:
            if layer == block or not block or layer.startswith(f"{block}."):
                return block
        return None

    def _turned(self, stream: Tensor) -> Tensor:
        return stream.transpose(0, 1) if self.tokens_first else stream

    def _given_to(self, call: Call) -> Tensor | None:
        """The stream that a block was given."""
        fed, stream = self._fed.get((call.layer, call.number)), first_tensor(call.output)
        given = find_tensors((fed.args, fed.kwargs)) if fed else []
        found = next((each for each in given if is_stream(each) and each.shape == stream.shape), None)
        return None if found is None else self._turned(found)

    def _after(self, last: Call) -> Iterator[Step]:
        """Yield the calls outside of the blocks after the last of them, with the first tensor each was given."""
        assert self._calls is not None
        modules = {name: module for module, name in self._modules.names.items()}
        for call in self._calls[self._calls.index(last) + 1 :]:
            fed = self._fed.get((call.layer, call.number))
            if call.layer in self.blocks or not call.layer or fed is None:
                continue
            given, made = find_tensors((fed.args, fed.kwargs)), first_tensor(call.output)
            if given and made is not None:
                turned = (self._turned(each) if each.dim() == 3 else each for each in (given[0], made))
                yield Step(call.layer, modules[call.layer], *turned)

    def _is_causal(self) -> bool | None:
        own = [each for label in range(len(self.labels)) for each in self.maps_at(label)]
        maps = [each.weights for each in own if each.weights.shape[3] == self.tokens]
        if not maps or self.tokens < 2:
            return None
        return all(float(weights.float().triu(1).abs().nan_to_num().max()) == 0 for weights in maps)

    def _logits_in(self, returned: Any) -> Tensor | None:
        """The logits among what the model returned: as many words as the lens makes, for all tokens or one."""
        first = [returned["logits"]] if isinstance(returned, Mapping) and "logits" in returned else []
        for tensor in find_tensors([*first, returned]):
            if tensor.dim() in (2, 3) and tensor.shape[-1] == self.words and tensor.is_floating_point():
                turned = self._turned(tensor) if tensor.dim() == 3 else tensor
                if turned.shape[0] == self.samples:
                    return turned
        return None

    # -- what is asked ------------------------------------------------------------------------------------------

    def reading(self, sample: int = 0) -> Reading:
        """Return the numbers of a sample; they are made when they are first asked for.

        Raises:
            IndexError: there is no such sample.

        """
        if not 0 <= sample < self.samples:
            raise IndexError(f"no sample {sample}: there are {self.samples}, counted from 0")
        if sample not in self._readings:
            before = None if self._before is None else self._before[sample]
            logits = None if self._logits is None else self._logits[sample]
            ids = None if self.ids is None or self.causal is False else self.ids[sample].to(self._streams[0].device)
            with self._evaluating():
                mine = [stream[sample] for stream in self._streams]
                self._readings[sample] = read(mine, before, self.lens, logits, ids)
            if len(self._readings) == self.samples:  # nobody will ask for these again
                self._streams, self._before, self._logits = [], None, None
        return self._readings[sample]

    def remarks(self, sample: int = 0) -> list[str]:
        """List what there is to say about the reading of a sample."""
        reading = self.reading(sample)
        said = [*self.notes]
        if self.lens is None:
            return said
        if reading.error is None:
            said.append("the lens is not checked: the model returned no logits of as many words")
        elif not reading.verified:
            said.append(_OTHER_LENS.format(reading.error, reading.largest, self.lens.text()))
        if self.lens.position is not None:
            place = "the first" if self.lens.position == 0 else "the last"
            said.append(
                f"the model reads {place} token alone; what the lens says of another is what it would say, were that "
                f"{place}"
            )
        if self.causal is False and self.ids is not None:
            said.append("tokens look at later ones here, so none of them predicts the next word, and no map shows that")
        return said

    def call_of(self, layer: int) -> tuple[str, int]:
        """Return the name of a layer, by its number, and which of its calls that is, from 1."""
        return self._layers[layer]

    def maps_at(self, layer: int) -> list[AttentionMap]:
        """List the attention maps of a layer, by its number, whose queries are these tokens."""
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
        """Say why a layer has no attention map; `""` if it has one."""
        if self.maps_at(layer):
            return ""
        if not self.maps:
            return "; ".join(self.maps.notes)
        return f"no attention of these tokens ran in layer {self.labels[layer]!r}"

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
        if parts := dict.fromkeys(part for parts in ours for part in parts):  # two captures may say the same
            self.warned.append("hookscope: " + "; ".join(parts))
        self.warned += [text for text in dict.fromkeys(said) if not text.startswith("hookscope: ")]


def _named(modules: Modules, layers: Which | Sequence[Which] | None) -> dict[str, nn.Module]:
    """Pick the layers that were named, if any were."""
    if layers is None:
        return {}
    several: list[Any] = list(layers) if isinstance(layers, list | tuple) else [layers]
    if not several:
        raise ValueError("layers=[] names none; leave it out, and they are found")
    return pick(modules, *several)


@contextmanager
def _with_the_way_out(max_bytes: float | None) -> Iterator[None]:
    """Say what can be done where streams take too much; the attention maps say so themselves."""
    try:
        yield
    except MemoryError as error:
        if max_bytes is None or "max_bytes" not in str(error) or str(error).startswith("the attention maps"):
            raise
        raise MemoryError(
            f"the streams and what the model returns take more than max_bytes={max_bytes:,}: give a shorter text, "
            "fewer samples or fewer layers=, or a larger max_bytes (None for no limit)"
        ) from error
