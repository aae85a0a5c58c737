"""Pick a token and a layer of a sequence model, and see its residual stream, words and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Never

import traitlets
from torch import nn

from hookscope.interp.attentions import AttentionMap, AttentionMaps
from hookscope.interp.lenses import Reading, Streams
from hookscope.interp.lenses.lens import LensSpec
from hookscope.interp.lenses.texts import Vocabulary, WordTable, label_tokens
from hookscope.interp.widgets.token_view import (
    SHOWS,
    MapLabels,
    describe_token,
    draw_attention,
    draw_map,
    list_attention,
    list_predictions,
    list_values,
    select_values,
    write_words,
)
from hookscope.layers import Which
from hookscope.layers.suggestions import not_found
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import assets, show_errors
from hookscope.widgets.code_panel import CodeWidget, write_output_code
from hookscope.widgets.module_rows import format_warnings
from hookscope.wrong_inputs import explain_input_errors

__all__ = ["TokenPicker"]

_MOST_BYTES = 4 << 30
LINES, MAP = LOOKS = ("lines", "map")
_CHOICES = ("sample", "show", "layer", "token", "attention", "head", "look")


class TokenPicker(CodeWidget):
    """Choose a token and a layer, and see the residual stream there, the words it predicts, and its attention.

    The model runs once, in `eval()`. A map shows a number for each layer and token. A table shows the words that the
    logit lens reads after the attention and the MLP of each layer. With a tokenizer, there is a box for your own text.
    Every control is also an attribute, see https://hookscope.github.io/hookscope/limits/token_picker.html

    Args:
        model: any module. Its training flags, parameters, buffers and hooks stay the same.
        *args: positional arguments of the model; with a tokenizer, a text.
        kwargs: keyword arguments of the model, such as ``{"attention_mask": mask}``.
        tokens: a string for each position, or a list of such lists, one per sample.
        layers: names, globs or types of the layers that return the stream; by default, hookscope finds them.
        lens: names of the modules from the stream to the logits, such as ``("norm", "head")``, or a function.
        vocabulary: a list of words or a function, such as ``tokenizer.convert_ids_to_tokens``.
        max_bytes: the maximum memory for streams and attention maps, 4 GiB by default; None for no limit.
        tokenizer: a function from a text to the input of the model, or a tokenizer of the library transformers.

    Raises:
        NoBlocksError, WrongInputError: a ValueError; no layer returns a stream, or the model cannot run.
        MemoryError: the pass needs more than `max_bytes`.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> picker = TokenPicker(net, torch.randn(1, 3, 8), tokens=["the", "cat", "sat"])
        >>> picker.token, picker.layer = 1, "layers.0"
        >>> picker.reading.norm.shape
        torch.Size([2, 3])

    """

    _esm, _css = assets(Path(__file__).with_name("token"))

    token = traitlets.Int(0, help="the position of the token, from 0; initially the last one").tag(sync=True)
    layer = traitlets.Unicode(help="the label of the layer; initially the last one").tag(sync=True)
    show = traitlets.Unicode("norm", help="norm, change, final word or next word").tag(sync=True)
    attention = traitlets.Unicode(help="the label of the attention map; '' if the layer has none").tag(sync=True)
    head = traitlets.Int(0, help="the head, from 0").tag(sync=True)
    look = traitlets.Unicode(LINES, help="draw attention as lines or as a map").tag(sync=True)
    sample = traitlets.Int(0, help="the index in the batch").tag(sync=True)
    text = traitlets.Unicode("", help="the text that the model reads; '' without a tokenizer").tag(sync=True)

    # Set here, read by the page: the options of the controls, and what is displayed.
    _layers: Any = traitlets.List().tag(sync=True)  # labels
    _tokens: Any = traitlets.List().tag(sync=True)  # strings of the sample
    _shows: Any = traitlets.List().tag(sync=True)  # [value, text]
    _samples = traitlets.Int(1).tag(sync=True)
    _maps: Any = traitlets.List().tag(sync=True)  # labels of this layer's maps
    _heads = traitlets.Int(0).tag(sync=True)
    width = traitlets.Int(640).tag(sync=True)  # of the space for the map, in pixels
    _size: Any = traitlets.List([1, 1]).tag(sync=True)
    _box: Any = traitlets.List([0, 0, 1, 1]).tag(sync=True)
    _caption = traitlets.Unicode().tag(sync=True)
    _description = traitlets.Unicode().tag(sync=True)
    _predictions: Any = traitlets.List().tag(sync=True)  # [layer, its label, [word, probability, word, ...]]
    _reads = traitlets.Bool(False).tag(sync=True)  # whether there is a tokenizer
    _weights: Any = traitlets.List().tag(sync=True)  # attention from the current token to each token
    _attention_rows: Any = traitlets.List().tag(sync=True)  # [key, weight], largest first
    _attention_text = traitlets.Unicode().tag(sync=True)
    _attention_check = traitlets.Unicode().tag(sync=True)  # how exact the weights are
    _notes: Any = traitlets.List().tag(sync=True)
    look_png = traitlets.Bytes(b"").tag(sync=True)
    look_alt = traitlets.Unicode().tag(sync=True)
    _look_size: Any = traitlets.List([1, 1]).tag(sync=True)
    _look_box: Any = traitlets.List([0, 0, 1, 1]).tag(sync=True)

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
        layers: Which | Sequence[Which] | None = None,
        lens: LensSpec = None,
        vocabulary: Vocabulary = None,
        max_bytes: float | None = _MOST_BYTES,
        tokenizer: Callable[[str], Any] | None = None,
        **_unknown: Never,
    ) -> None:
        kwargs = check_kwargs(TokenPicker, kwargs, _unknown)
        if vocabulary is None and hasattr(tokenizer, "convert_ids_to_tokens"):  # of the library transformers
            vocabulary = partial(_read_token, tokenizer)
        WordTable(vocabulary, None)  # checks vocabulary before the model runs
        self._model, self._options, self._vocabulary = model, (layers, lens, max_bytes), vocabulary
        self._tokenizer, text = tokenizer, ""
        if tokenizer is not None:
            if len(args) != 1 or not isinstance(args[0], str) or kwargs:
                raise TypeError("with tokenizer=, pass a text: TokenPicker(model, text, tokenizer=tokenizer)")
            text = args[0].strip()
            args, kwargs = self._tokenize(text)
        self._run(args, kwargs, tokens)
        self._read_text = text
        streams = self._streams
        self._is_updating = True
        super().__init__(
            _layers=streams.labels,
            _samples=streams.samples,
            _reads=tokenizer is not None,
            layer=streams.labels[-1],
            text=text,
            token=streams.tokens - 1,
        )
        self.show = "norm" if select_values(self.reading, "final word") is None else "final word"
        self._is_updating = False
        self._update()

    def _tokenize(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model for a text."""
        assert self._tokenizer is not None
        if not text:
            raise ValueError("the text is empty. Type a word")
        if hasattr(self._tokenizer, "convert_ids_to_tokens"):  # of the library transformers
            return (), dict(self._tokenizer(text, return_tensors="pt"))  # type: ignore[call-arg]
        found = self._tokenizer(text)
        return ((), dict(found)) if isinstance(found, Mapping) else ((found,), {})

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], tokens: Any = None) -> None:
        """Run the model. Keep its streams, and a label for each token."""
        with explain_input_errors(self._model, args, kwargs):
            streams = Streams(self._model, args, kwargs, *self._options)
        words = WordTable(self._vocabulary, streams.words or None)
        are_words = bool(words) and bool(streams.words or self._tokenizer)
        shown = words if are_words else WordTable(None, None)
        texts = label_tokens(tokens, streams.ids, shown, streams.samples, streams.tokens)
        self._streams, self._inputs, self._words, self._texts = streams, (args, kwargs), words, texts
        self._map_key: tuple[Any, ...] = ()
        self._attention_key: tuple[Any, ...] = ()
        self._labels = MapLabels(streams.labels, texts[0])

    # -- the current choice -------------------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """Norms, changes, words and probabilities of the current sample, for all layers and tokens."""
        return self._streams.reading(self.sample)

    @property
    def maps(self) -> AttentionMaps:
        """All attention maps of the pass, as `hookscope.attention` returns them."""
        return self._streams.maps

    @property
    def map(self) -> AttentionMap | None:
        """The current attention map, with all heads and samples; None if the layer has none."""
        return self.maps[self.attention] if self._maps else None

    def predictions(self) -> list[dict[str, object]]:
        """List the top words of each layer at the current token; [] without a lens."""
        return list_predictions(self.reading, self.token, self._labels, self._words)

    def numbers(self) -> Rows:
        """List the numbers of the map, a row per token and a column per layer.

        A large map is cut to the 64 tokens around the current one, and to 16 layers.
        """
        return list_values(select_values(self.reading, self.show), self._labels, self.token)

    def summary(self) -> str:
        """Describe the map and the current choice."""
        if not hasattr(self, "_streams"):
            return "TokenPicker closed"
        streams = self._streams
        what = f"{SHOWS[self.show]}, {len(streams.labels)} layers by {streams.tokens} tokens"
        of = f", sample {self.sample} of 0 to {streams.samples - 1}" if streams.samples > 1 else ""
        trust = self._list_remarks()[len(streams.notes) :]  # without the notes about the whole model
        return "\n".join([f"TokenPicker {streams.title}: {what}{of}; {self._description}", *trust])

    def close(self) -> None:
        """Remove the widget from the page, and release the streams."""
        super().close()
        if hasattr(self, "_streams"):
            del self._streams, self._inputs, self._model

    # -- from a choice to an image ------------------------------------------------------------------------------

    @traitlets.validate("token", "sample", "head")
    def _check_number(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        if self._is_updating:
            return value
        if name == "head":
            if self.map is None:
                raise ValueError(self._streams.why_no_map(self._row))
            self.map.heads(value)
            return value
        count = self._streams.tokens if name == "token" else self._streams.samples
        if not 0 <= value < count:
            raise IndexError(f"no {name} {value}: there are {count} {name}s, counted from 0")
        return value

    @traitlets.validate("text")
    def _check_text(self, proposal: Mapping[str, Any]) -> str:
        text = str(proposal["value"]).strip()
        if self._is_updating or text == self._read_text:
            return text
        if self._tokenizer is None:
            raise ValueError("this picker has no tokenizer. Pass one: TokenPicker(model, text, tokenizer=tokenizer)")
        if "text" not in self._received:
            self._run(*self._tokenize(text))
            return text
        with self.catch_errors():  # from the page: show the reason, and keep the text before
            self._run(*self._tokenize(text))
        return self._read_text if self.problem else text

    @traitlets.observe("text")
    def _on_text(self, change: Mapping[str, Any]) -> None:
        if self._is_updating or self.text == self._read_text:
            return
        self._read_text, self._is_updating, streams = self.text, True, self._streams
        try:
            self._layers, self._samples, self.sample = streams.labels, streams.samples, 0
            self.layer = self.layer if self.layer in streams.labels else streams.labels[-1]
            self.token = streams.tokens - 1
            if select_values(self.reading, self.show) is None:
                self.show = "norm"
        finally:
            self._is_updating = False
        self._update()

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Mapping[str, Any]) -> str:
        if proposal["value"] not in self._streams.labels:
            raise not_found(self._streams.labels, proposal["value"], f"no layer {proposal['value']!r} on the map")
        return str(proposal["value"])

    @traitlets.validate("attention")
    def _check_attention(self, proposal: Mapping[str, Any]) -> str:
        if not self._is_updating and proposal["value"] not in self._maps:
            if not self._maps:
                raise ValueError(self._streams.why_no_map(self._row))
            raise not_found(self._maps, proposal["value"], f"no map {proposal['value']!r} in layer {self.layer!r}")
        return str(proposal["value"])

    @traitlets.validate("show", "look")
    def _check_option(self, proposal: Mapping[str, Any]) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        if value not in (allowed := LOOKS if name == "look" else tuple(SHOWS)):
            raise ValueError(f"{name}={value!r}: choose {', '.join(map(repr, allowed))}")
        if name == "show" and not self._is_updating and select_values(self.reading, value) is None:
            raise ValueError(f"show={value!r}: {self._explain_missing(value)}")
        return str(value)

    def _explain_missing(self, show: str) -> str:
        if show in ("attention", "MLP"):
            return "these layers do not return the sum of their input, an attention output and an MLP output"
        if self._streams.lens is None:
            return "the model has no lens, which turns a stream into words. Pass one with lens="
        if self._streams.causal is False:
            return "this model is not causal: its tokens attend to later ones, so it does not predict the next word"
        return "the token IDs of the text are unknown, or outside the vocabulary of the lens"

    @traitlets.observe(*_CHOICES, "width")
    def _on_choice(self, change: Mapping[str, Any]) -> None:
        if not self._is_updating:
            self._update()

    @property
    def _row(self) -> int:
        return self._streams.labels.index(self.layer)

    @show_errors
    def _update(self) -> None:
        """Draw the current choice, and update the options of the controls."""
        before, self._is_updating = self._is_updating, True
        try:
            with self.hold_sync():
                self._show_map()
                self._predictions = self._format_predictions()
                self._description = describe_token(self.reading, self._row, self.token, self._labels, self._words)
                self._show_attention()
                self.code = self._write_code()
                self._notes = [*format_warnings(self._streams.warned), *self._list_remarks()]
        finally:
            self._is_updating = before

    def _format_predictions(self) -> list[list[Any]]:
        """Return the rows of words as text for the page."""
        short = dict(zip(self._labels.layers, self._labels.short, strict=True))
        rows = []
        for row in self.predictions():
            layer, after = str(row.pop("layer")), row.pop("after", "")
            rows.append([layer, f"{short[layer]} {after}".strip(), write_words(row)])
        return rows

    def _show_map(self) -> None:
        key = (self.sample, self.show, self.width)
        if key == self._map_key:
            return
        self._labels = MapLabels(self._streams.labels, self._texts[self.sample])
        self._tokens = list(self._texts[self.sample])
        reading = self.reading
        self._shows = [[name, text] for name, text in SHOWS.items() if select_values(reading, name) is not None]
        values = select_values(reading, self.show)
        if values is None:  # another sample had these values, this one does not
            self.show, values = "norm", reading.norm
            key = (self.sample, self.show, self.width)
        of = f", sample {self.sample}" if self._streams.samples > 1 else ""
        drawn = draw_map(values, self.show, self._labels, f"{self._streams.title}{of}", self.width)
        self.png, self.alt, self._caption = drawn.heat.png, drawn.alt, drawn.caption
        self._size, self._box = list(drawn.heat.size), list(drawn.heat.box)
        self._map_key = key

    def _write_code(self) -> str:
        """Write plain torch code that captures the stream at the current layer and token."""
        layer, call = self._streams.call_at(self._row)
        pick = "output = output if isinstance(output, torch.Tensor) else output[0]  # the stream is the first item"
        axes = [("token", self.token), ("sample", self.sample)]
        (first, one), (second, other) = axes if self._streams.tokens_first else axes[::-1]
        end = f"stream = outputs[{layer!r}][{call - 1}][{one}, {other}]  # {first} {one}, {second} {other}"
        return write_output_code(layer, pick, end, *self._inputs)

    def _show_attention(self) -> None:
        found = self._streams.maps_at(self._row)
        place = self._maps.index(self.attention) if self.attention in self._maps else 0
        self._maps = [each.label for each in found]
        if self.attention not in self._maps:  # keep the position in the list, for example self-attention
            self.attention = self._maps[min(place, len(found) - 1)] if found else ""
        if not found:
            self._heads, self._weights, self._attention_rows, self._attention_check = 0, [], [], ""
            self._attention_text = f"This layer has no attention map: {self._streams.why_no_map(self._row)}."
            self.look_png, self.look_alt, self._attention_key = b"", "", ()
            return
        each = self.maps[self.attention]
        self._heads = each.weights.shape[1]
        self.head = min(self.head, self._heads - 1)
        seen = list_attention(each, self.sample, self.head, self.token, self._labels)
        self._weights, self._attention_rows = seen.weights, seen.rows
        self._attention_text = " ".join([seen.text, *map(_to_sentence, each.notes)])
        self._attention_check = _to_sentence(each.check)
        key = (self.attention, self.sample, self.head, self.width) if self.look == MAP else ()
        if key != self._attention_key:
            self.look_png, self.look_alt = b"", ""
            if key:
                drawn = draw_attention(each, self.sample, self.head, self._labels, self.width)
                self.look_png, self.look_alt = drawn.heat.png, drawn.alt
                self._look_size, self._look_box = list(drawn.heat.size), list(drawn.heat.box)
            self._attention_key = key

    def _list_remarks(self) -> list[str]:
        """List the remarks on the lens, as sentences."""
        return [_to_sentence(text) for text in self._streams.remarks(self.sample)]


def _read_token(tokenizer: Any, number: int) -> str:
    """Return a token of the library transformers as a person reads it: " to" and not "Ġto"."""
    token = tokenizer.convert_ids_to_tokens(number)
    return str(tokenizer.convert_tokens_to_string([token])).replace("\n", "\\n")


def _to_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
