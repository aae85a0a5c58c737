"""Code of chapter 14 for the sentence encoder: with or without its weights, and all its heads in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookscope import samples
from hookscope.pictures.colors import DATA, DOOR, LINE
from hookscope.pictures.picture import Picture, from_figure
from hookscope.samples.minilm import SENTENCE_WEIGHTS

if TYPE_CHECKING:
    from transformers import BertModel

__all__ = [
    "SENTENCE",
    "draw_heads",
    "draw_values",
    "load_encoder",
    "record_weights",
    "recorded_values",
    "recorded_weights",
]

SENTENCE = "The pilot landed the old plane on a field near the village."
PIECES = ("[CLS]", *SENTENCE.lower().replace(".", " .").split(), "[SEP]")
_IDS = (101, 1996, 4405, 5565, 1996, 2214, 4946, 2006, 1037, 2492, 2379, 1996, 2352, 1012, 102)
RECORDING = Path(__file__).with_suffix(".safetensors")
MISSING = (
    f"NOTE: the weights of the sentence encoder are missing ({SENTENCE_WEIGHTS}). The model goes on untrained. "
    "The figure of its heads, and the numbers that are counted in it, are those of the trained one, from a recording."
)
_COLORS = dict(zip(("the next token", "the previous token", "[CLS]", "[SEP]"), DATA, strict=True))
_SIGNS = {"the next token": "→", "the previous token": "←", "[CLS]": "C", "[SEP]": "S"}


class _OneSentence:
    """Stands in for the tokenizer where its words are not installed: it knows `SENTENCE`."""

    def __call__(self, text: str, return_tensors: str = "pt") -> dict[str, Tensor]:
        if text != SENTENCE:
            raise ValueError(f"without {SENTENCE_WEIGHTS} there is no tokenizer, so only one sentence can be read")
        ids = torch.tensor([_IDS])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return PIECES[_IDS.index(number)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return tokens[0]


def load_encoder() -> tuple[BertModel, Any, dict[str, Tensor], list[str]]:
    """Return the model of `samples.sentence_encoder()`, its tokenizer, the batch for `SENTENCE`, and its tokens.

    If the weights are not installed, say so, and return an untrained model of the same size.

    Example:
        >>> model, tokenizer, batch, pieces = load_encoder()
        >>> batch["input_ids"].shape[1] == len(pieces)
        True

    """
    if samples.has_sentence_weights():
        model, tokenizer = samples.sentence_encoder()
        batch = dict(tokenizer(SENTENCE, return_tensors="pt"))
        return model, tokenizer, batch, list(tokenizer.convert_ids_to_tokens(batch["input_ids"][0]))
    from transformers import BertConfig, BertModel

    print(MISSING)
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config).eval()
    one_sentence = _OneSentence()
    return model, one_sentence, one_sentence(SENTENCE), list(PIECES)


def recorded_weights() -> Tensor:
    """Return the recorded attention weights of the trained encoder: (layers, heads, from, to)."""
    from safetensors.torch import load_file

    return load_file(RECORDING)["weights"].float()


def recorded_values() -> Tensor:
    """Return the recorded length of the value vector of [CLS], as a share of the others: (layers, heads)."""
    from safetensors.torch import load_file

    return load_file(RECORDING)["values"].float()


def record_weights() -> None:
    """Write the recording again, after `SENTENCE` was changed."""
    from safetensors.torch import save_file

    import hookscope

    model, _, batch, _ = load_encoder()
    maps = hookscope.attention(model, kwargs=batch)
    weights = torch.cat([maps[name].weights for name in maps])
    with hookscope.capture(model, "**.self.value") as seen, torch.no_grad():
        model(**batch)
    norms = torch.stack([seen[name].output[0].unflatten(-1, (12, -1)).norm(dim=-1) for name in seen])
    values = norms[:, 0] / norms[:, 1:].mean(dim=1)
    save_file({"weights": weights.half().contiguous(), "values": values.half().contiguous()}, RECORDING)


def draw_values(weight: Tensor, length: Tensor) -> Picture:
    """Draw a dot for each head: how much weight it gives to [CLS], and how long the value vector there is.

    Args:
        weight: the mean weight to [CLS], (layers, heads).
        length: the norm of the value vector of [CLS], as a share of the mean of the others, (layers, heads).

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    most = weight > 0.5
    axes.axvspan(0.5, 1.02, color=DOOR, zorder=0)
    for chosen, color, label in ((most, DATA[0], "more than half"), (~most, LINE, "less")):
        axes.plot(weight[chosen], length[chosen], "o", color=color, alpha=0.75, label=label)
    axes.set(
        xlabel="weight to [CLS]", ylabel="length of its value vector,\nin % of the others", yscale="log", xlim=(0, 1.02)
    )
    axes.set_yticks([0.01, 0.1, 1], labels=["1 %", "10 %", "100 %"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(0.5, 1))
    rows: list[dict[str, object]] = [
        {
            "layer": layer,
            "head": head,
            "weight to [CLS]": round(float(weight[layer, head]), 2),
            "length of its value vector": f"{float(length[layer, head]):.1%}",
        }
        for layer in range(weight.shape[0])
        for head in range(weight.shape[1])
    ]
    span = f"{float(length[most].min()):.0%} to {float(length[most].max()):.0%}"
    alt = (
        f"A dot for each of {weight.numel()} heads. {int(most.sum())} give more than half of their weight to [CLS]. "
        f"For these, the length of its value vector is {span} of that of the others."
    )
    return from_figure(figure, alt, "What a head gives to [CLS], and what it finds there", rows)


def draw_heads(weights: Tensor, pieces: list[str], above: float = 0.5) -> Picture:
    """Draw a small map for each head, a row for each layer; color the frame of heads that do one thing.

    Args:
        weights: (layers, heads, from, to).
        pieces: the tokens, from [CLS] to [SEP].
        above: a head does a thing if it gives more than this to the next token, the previous one, [CLS] or [SEP], in
            the mean over the other tokens.

    """
    from matplotlib.figure import Figure

    layers, heads = weights.shape[:2]
    shares = {
        "the next token": weights.diagonal(1, -2, -1).mean(-1),
        "the previous token": weights.diagonal(-1, -2, -1).mean(-1),
        "[CLS]": weights[..., 1:, 0].mean(-1),
        "[SEP]": weights[..., :-1, -1].mean(-1),
    }
    figure = Figure(figsize=(0.82 * heads + 0.5, 0.9 * layers + 0.75), dpi=100)
    grid = figure.subplots(layers, heads, squeeze=False)
    figure.subplots_adjust(left=0.045, right=0.995, top=0.93, bottom=0.1, wspace=0.12, hspace=0.24)
    rows: list[dict[str, object]] = []
    counts = dict.fromkeys(shares, 0)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            axes.imshow(weights[layer, head].float(), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            found = {name: round(float(share[layer, head]), 2) for name, share in shares.items()}
            name = max(found, key=lambda each: found[each])
            does = float(shares[name][layer, head]) > above
            for side in axes.spines.values():
                side.set(color=_COLORS[name] if does else LINE, linewidth=3 if does else 0.8)
            if does:
                counts[name] += 1
                axes.set_title(f"{_SIGNS[name]} {found[name]:.2f}", fontsize=8.5, color=_COLORS[name], pad=3)
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=9)
            if layer == layers - 1:
                axes.set_xlabel(f"head {head}", fontsize=9)
            rows.append({"layer": layer, "head": head, **{f"to {key}": value for key, value in found.items()}})
    figure.text(0.045, 0.012, "More than half goes to", fontsize=9.5)
    for at, name in zip((0.24, 0.44, 0.67, 0.84), shares, strict=True):
        line = f"{_SIGNS[name]} {name}: {counts[name]} head{'' if counts[name] == 1 else 's'}"
        figure.text(at, 0.012, line, fontsize=9.5, color=_COLORS[name], weight="bold")
    alt = (
        f"{layers * heads} small attention maps, a row for each of {layers} layers and a column for each of {heads} "
        f"heads; darker means more. A frame marks heads that give more than {above:g} to one place: "
        + ", ".join(f"{count} to {name}" for name, count in counts.items())
        + "."
    )
    caption = f"Where the heads look, from each of the {len(pieces)} tokens (rows) to each (columns)"
    return Picture(from_figure(figure, alt).png, alt, caption, rows)
