"""What every interactive figure promises in Python: rows for the widgets of the package, and those of the course."""

from __future__ import annotations

from typing import Any

from torch import nn

import hookscope
from hookscope import samples, widgets
from hookscope_course.figures import registry
from hookscope_course.figures.kit.promises import Promises
from tests.shared.language_models import READER_IDS, READER_WORDS, Reader, gpt2
from tests.shared.smallest_figure import add_smallest_figure


def patched(net: nn.Module) -> Any:
    ids, options = READER_IDS[:, :5], hookscope.SweepOptions(tokens=READER_WORDS[:5], progress=False)
    return hookscope.sweep(
        net, ids, layers="transformer.h.*", source=ids.flip(1), positions=range(5), options=options,
        metric=lambda output: output.logits[0, -1, 3],
    )  # fmt: skip


DIGITS, NINE = samples.digit_cnn, samples.digit(9)

FIGURES: dict[str, Promises] = {
    "LayerPicker": Promises(
        lambda net: widgets.LayerPicker(net, samples.digit(5)),
        {"layer": "block2.relu", "channel": 3, "show": "gradient", "target": 2},
        refused=(
            ("layer", "block1.cnov", "no layer 'block1.cnov'; did you mean 'block1.conv'"),
            ("show", "gradiant", "choose 'activation', 'gradient'"),
            ("order", "size", "choose 'index'"),
            ("channel", 16, "choose -1 to 15"),
            ("sample", 1, "choose 0 to 0"),
            ("call", 2, "choose 1 to 1"),
            ("target", 10, "choose -1 to 9"),
            ("per_page", 0, "choose 1 to 256"),
            ("part", "[0]", "choose ''"),
        ),
        calls=(
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, layr="fc"), "no option 'layr'"),
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, layer="block1.cnov"), "did you mean"),
            (lambda _: widgets.LayerPicker(DIGITS(), NINE, classes=["a", "b"]), "the model returns 10 scores"),
        ),
        model=DIGITS,
        together=False,
    ),
    "PatchMap": Promises(
        lambda net: widgets.PatchMap(patched(net), vocabulary=[f"word{number}" for number in range(20)]),
        {"layer": "transformer.h.1", "column": 0, "position": 2},
        refused=(
            ("layer", "transformer.h0", "did you mean 'transformer.h.0'"),
            ("column", 5, "no position 5 in this sweep"),
            ("sample", 2, "no sample 2: the output has 2"),
            ("position", 5, "no position 5: the output has 5"),
        ),
        calls=(
            (lambda _: widgets.PatchMap([]), "must be a Sweep, not list"),
            (lambda each: widgets.PatchMap(each._sweep, row=1), "no attribute 'row'"),
            (lambda each: widgets.PatchMap(each._sweep, vocabulary=["a", "b"]), "no tensor"),
            (lambda each: widgets.PatchMap(each._sweep, classes=["a"]), "(samples, classes)"),
            (lambda each: widgets.PatchMap(each._sweep, classes=["a"], vocabulary=["a"]), "not both"),
        ),
        model=gpt2,
    ),
    "TokenPicker": Promises(
        lambda net: widgets.TokenPicker(net, READER_IDS, vocabulary=READER_WORDS),
        {"layer": "blocks.0", "token": 1, "show": "norm", "sample": 1},
        refused=(
            ("layer", "block.2", "did you mean 'blocks.2'"),
            ("token", 6, "there are 6 tokens"),
            ("sample", 2, "no sample 2"),
            ("head", 1, "no head 1"),
            ("show", "loss", "choose 'final word'"),
            ("attention", "blocks.0.heads.0", "no map 'blocks.0.heads.0' in layer 'blocks.2'"),
            ("text", "the cat", "no tokenizer"),
        ),
        calls=(
            (lambda _: widgets.TokenPicker(Reader(), READER_IDS, tokens=["the", "cat"]), "there are 6 positions"),
            (lambda _: widgets.TokenPicker(Reader(), READER_IDS, tokens=[["the"] * 6]), "1 lists for 2 samples"),
            (lambda _: widgets.TokenPicker(Reader(), READER_IDS, tokens=[1] * 6), "not a string"),
            (lambda _: widgets.TokenPicker(Reader(), READER_IDS, vocabulary=["the"]), "the lens makes logits for 10"),
            (lambda _: widgets.TokenPicker(Reader(), READER_IDS, vocabulary={"the": 0}), "vocabulary is a dict"),
        ),
        model=Reader,
    ),
}
add_smallest_figure()
for _name in registry.FIGURES:
    FIGURES |= registry.load_promises(_name).PROMISES
