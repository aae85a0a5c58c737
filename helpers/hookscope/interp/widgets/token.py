"""Pick a token and a layer of a sequence model: what its stream says there, and what the token looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)
from hookscope.layers import Which
from hookscope.layers.suggestions import not_found
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.picture import Rows, as_text
from hookscope.widgets.base import assets, show_errors
from hookscope.widgets.code_panel import CodeWidget, write_output_code
from hookscope.widgets.module_rows import format_warnings
from hookscope.widgets.wrong_inputs import explain_input_errors

__all__ = ["TokenPicker"]

_MOST_BYTES = 4 << 30
LINES, MAP = LOOKS = ("lines", "map")
_CHOICES = ("sample", "show", "layer", "token", "attention", "head", "look")


class TokenPicker(CodeWidget):
    """Choose a token of a text and a layer: see the stream there, the words in it, and where its attention goes.

    The model runs once, in `eval()`, when the picker is made. The map has a row for each layer and a column for each
    token; beside it stands what each layer's stream would say, if it were the last: the logit lens. A note says where
    the lens on the last layer differs from what the model returned. Limits: docs/limits/attention.md.

    What you choose is also a property: `token`, `layer`, `attention`, `head`, `look` (`"lines"` or `"map"`), `sample`,
    and `show`: `"norm"` or `"change"` of the stream, or the probability of the `"final word"` or `"next word"`. The
    plain torch lines that capture the stream there are in `code`.

    Args:
        model: any module. Its training flags, parameters, buffers and hooks stay as they are.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model, as ``{"attention_mask": mask}``.
        tokens: a string for each position of the text, or such a list for each sample.
        layers: names, globs or types of the layers whose outputs are the stream; without it they are found.
        lens: names of modules that make logits of a stream, as ``("norm", "head")``, or a function that does.
        vocabulary: a word for each number of a logit, or a function, as ``tokenizer.convert_ids_to_tokens``.
        max_bytes: refuse streams or attention maps that take more than this, 4 GiB by default; None for no limit.

    Raises:
        NoBlocksError: a ValueError; no layers return such a stream, or not all that were named.
        WrongInputError: a ValueError; the model cannot run on these inputs.
        MemoryError: the pass would keep more than `max_bytes`.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> picker = TokenPicker(net, torch.randn(1, 3, 8), tokens=["the", "cat", "sat"])
        >>> picker.layer, picker.token, picker.show
        ('layers.1', 2, 'norm')
        >>> picker.token, picker.layer = 1, "layers.0"
        >>> picker.reading.norm.shape, picker.map.weights[picker.sample, picker.head, picker.token].shape
        (torch.Size([2, 3]), torch.Size([3]))

    """

    _esm, _css = assets(Path(__file__).with_name("token"))

    token = traitlets.Int(0, help="the chosen position, from 0; at first the last one").tag(sync=True)
    layer = traitlets.Unicode(help="the label of the chosen layer; at first the last one").tag(sync=True)
    show = traitlets.Unicode("norm", help="norm, change, final word or next word").tag(sync=True)
    attention = traitlets.Unicode(help="the label of the attention map in this layer; '' without one").tag(sync=True)
    head = traitlets.Int(0, help="the chosen head, from 0; at most the last one of the layer").tag(sync=True)
    look = traitlets.Unicode(LINES, help="attention as lines from the token, or as a map").tag(sync=True)
    sample = traitlets.Int(0, help="which sample of the batch").tag(sync=True)

    # What there is to choose from, and what is shown; written here, read by the page.
    _layers: Any = traitlets.List().tag(sync=True)  # labels
    _tokens: Any = traitlets.List().tag(sync=True)  # strings, of the sample
    _shows: Any = traitlets.List().tag(sync=True)  # [value, text]
    _samples = traitlets.Int(1).tag(sync=True)
    _maps: Any = traitlets.List().tag(sync=True)  # labels, in this layer
    _heads = traitlets.Int(0).tag(sync=True)
    width = traitlets.Int(640).tag(sync=True)  # pixels there are for the map
    _size: Any = traitlets.List([1, 1]).tag(sync=True)
    _box: Any = traitlets.List([0, 0, 1, 1]).tag(sync=True)
    _caption = traitlets.Unicode().tag(sync=True)
    _description = traitlets.Unicode().tag(sync=True)
    _predictions: Any = traitlets.List().tag(sync=True)  # [layer, [word, probability, word, ...]]
    _weights: Any = traitlets.List().tag(sync=True)  # of the chosen token, one for each token
    _attention_rows: Any = traitlets.List().tag(sync=True)  # [key, weight], the greatest
    _attention_text = traitlets.Unicode().tag(sync=True)
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
        **_unknown: Never,
    ) -> None:
        kwargs = check_kwargs(TokenPicker, kwargs, _unknown)
        WordTable(vocabulary, None)  # before anything runs
        with explain_input_errors(model, args, kwargs):
            streams = Streams(model, args, kwargs, layers, lens, max_bytes)
        self._streams, self._inputs = streams, (args, kwargs)
        self._words = WordTable(vocabulary, streams.words or None)
        known = streams.ids if streams.words and self._words else None
        self._texts = label_tokens(
            tokens,
            streams.ids if known is None else known,
            self._words if known is not None else WordTable(None, None),
            streams.samples,
            streams.tokens,
        )
        self._map_key: tuple[Any, ...] = ()
        self._attention_key: tuple[Any, ...] = ()
        self._labels = MapLabels(streams.labels, self._texts[0])
        self._is_updating = True
        super().__init__(
            _layers=streams.labels, _samples=streams.samples, layer=streams.labels[-1], token=streams.tokens - 1
        )
        self.show = "norm" if select_values(self.reading, "final word") is None else "final word"
        self._is_updating = False
        self._update()

    # -- what was chosen ----------------------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """The numbers of the chosen sample: norms, changes, words and their probabilities, all layers and tokens."""
        return self._streams.reading(self.sample)

    @property
    def maps(self) -> AttentionMaps:
        """All attention maps of the pass, as of `hookscope.attention`."""
        return self._streams.maps

    @property
    def map(self) -> AttentionMap | None:
        """The chosen attention map, with all heads and samples; None where there is none."""
        return self.maps[self.attention] if self._maps else None

    def predictions(self) -> list[dict[str, object]]:
        """List for each layer the words with the highest probabilities at the chosen token; [] without a lens."""
        return list_predictions(self.reading, self.token, self._labels, self._words)

    def numbers(self) -> Rows:
        """List the numbers on the map: a row for each token, a column for each layer; of many, those near the choice.

        The 64 tokens around the chosen one are listed, and 16 layers, the last among them.
        """
        return list_values(select_values(self.reading, self.show), self._labels, self.token)

    def summary(self) -> str:
        """Say what the map shows, and what is chosen."""
        if not hasattr(self, "_streams"):
            return "TokenPicker closed"
        streams = self._streams
        what = f"{SHOWS[self.show]}, {len(streams.labels)} layers by {streams.tokens} tokens"
        of = f", sample {self.sample} of 0 to {streams.samples - 1}" if streams.samples > 1 else ""
        trust = self._list_remarks()[
            len(streams.notes) :
        ]  # of what is shown; why there is no lens stands in the widget
        return "\n".join([f"TokenPicker {streams.title}: {what}{of}; {self._description}", *trust])

    def close(self) -> None:
        """Take the widget off the page and let go of what it holds."""
        super().close()
        if hasattr(self, "_streams"):
            del self._streams, self._inputs

    # -- from a choice to a picture -----------------------------------------------------------------------------

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
            raise IndexError(f"no {name} {value}: there are {count}, counted from 0")
        return value

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
            raise ValueError(f"{name}={value!r}: give {', '.join(map(repr, allowed))}")
        if name == "show" and not self._is_updating and select_values(self.reading, value) is None:
            raise ValueError(f"show={value!r}: {self._explain_missing(value)}")
        return str(value)

    def _explain_missing(self, show: str) -> str:
        if self._streams.lens is None:
            return "there is no lens, which makes words of a stream; give one with lens="
        if self._streams.causal is False:
            return "tokens look at later ones in this model, so it predicts no next word"
        return "the numbers of the text's tokens are not known, or are no words of the lens"

    @traitlets.observe(*_CHOICES, "width")
    def _on_choice(self, change: Mapping[str, Any]) -> None:
        if not self._is_updating:
            self._update()

    @property
    def _row(self) -> int:
        return self._streams.labels.index(self.layer)

    @show_errors
    def _update(self) -> None:
        """Draw what is chosen, and say what else there is to choose."""
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
        """The rows of the words, as text: what is sent to a page can be no NaN."""
        rows = zip(self._labels.short, self.predictions(), strict=False)
        return [[short, [as_text(value) for name, value in row.items() if name != "layer"]] for short, row in rows]

    def _show_map(self) -> None:
        key = (self.sample, self.show, self.width)
        if key == self._map_key:
            return
        self._labels = MapLabels(self._streams.labels, self._texts[self.sample])
        self._tokens = list(self._texts[self.sample])
        reading = self.reading
        self._shows = [[name, text] for name, text in SHOWS.items() if select_values(reading, name) is not None]
        values = select_values(reading, self.show)
        if values is None:  # there was one of another sample
            self.show, values = "norm", reading.norm
            key = (self.sample, self.show, self.width)
        of = f", sample {self.sample}" if self._streams.samples > 1 else ""
        drawn = draw_map(values, self.show, self._labels, f"{self._streams.title}{of}", self.width)
        self.png, self.alt, self._caption = drawn.heat.png, drawn.alt, drawn.caption
        self._size, self._box = list(drawn.heat.size), list(drawn.heat.box)
        self._map_key = key

    def _write_code(self) -> str:
        """Write the plain torch lines that capture the stream at the chosen layer and token."""
        layer, call = self._streams.call_at(self._row)
        pick = "output = output if isinstance(output, torch.Tensor) else output[0]  # the stream comes first"
        axes = [("token", self.token), ("sample", self.sample)]
        (first, one), (second, other) = axes if self._streams.tokens_first else axes[::-1]
        end = f"stream = outputs[{layer!r}][{call - 1}][{one}, {other}]  # {first} {one}, {second} {other}"
        return write_output_code(layer, pick, end, *self._inputs)

    def _show_attention(self) -> None:
        found = self._streams.maps_at(self._row)
        place = self._maps.index(self.attention) if self.attention in self._maps else 0
        self._maps = [each.label for each in found]
        if self.attention not in self._maps:  # the same of the new layer: its self-attention, for example
            self.attention = self._maps[min(place, len(found) - 1)] if found else ""
        if not found:
            self._heads, self._weights, self._attention_rows = 0, [], []
            self._attention_text = f"No attention map here: {self._streams.why_no_map(self._row)}."
            self.look_png, self.look_alt, self._attention_key = b"", "", ()
            return
        each = self.maps[self.attention]
        self._heads = each.weights.shape[1]
        self.head = min(self.head, self._heads - 1)
        seen = list_attention(each, self.sample, self.head, self.token, self._labels)
        self._weights, self._attention_rows = seen.weights, seen.rows
        self._attention_text = " ".join([seen.text, *map(_to_sentence, [each.check, *each.notes])])
        key = (self.attention, self.sample, self.head, self.width) if self.look == MAP else ()
        if key != self._attention_key:
            self.look_png, self.look_alt = b"", ""
            if key:
                drawn = draw_attention(each, self.sample, self.head, self._labels, self.width)
                self.look_png, self.look_alt = drawn.heat.png, drawn.alt
                self._look_size, self._look_box = list(drawn.heat.size), list(drawn.heat.box)
            self._attention_key = key

    def _list_remarks(self) -> list[str]:
        """What must be known of the lens, as sentences."""
        return [_to_sentence(text) for text in self._streams.remarks(self.sample)]


def _to_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
