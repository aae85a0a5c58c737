"""What chapter 16 says beyond its cells, run."""

import functools
import re
from itertools import product
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course.chapters.ch14_smollm2 import read_back
from hookscope_course.figures import SteeringSlider
from tests.shared.language_models import gpt2

WORDS, TOKENS = samples.STORY_WORDS, samples.story_tokens


@torch.no_grad()
def test_which_vectors_turn_verbs(says):
    says(
        "They seldom turn *sleeps* into *sleep*, and they break the text much earlier:",
        "random vectors do almost nothing.",
        "the 20 random vectors give the plural verbs a probability of 0.39 on average. "
        "With 300 others, the average was 0.29.",
        "with one and 0.91 with the other. But one of the 20 random vectors reaches 0.77.",
        "`vector` works at the noun:",
        "`found` works at the last token: it leaves the noun alone",
        "Ten more vectors, trained from random starts, also work at the last token.",
        "40 different rows, a probe gets all 40 right even if the labels are random.",
    )
    lm, plural = samples.story_lm(), [WORDS.index(verb) for verb in MANY_DO]

    def texts(nouns: Any, near: str = "cat") -> Tensor:
        return torch.cat([TOKENS(f"the {noun} near the {near}") for noun in nouns])

    def rows(tokens: Tensor) -> Any:
        with hookscope.capture(lm, "blocks.0") as seen:
            lm(tokens)
        return seen["blocks.0"].output

    def pushed(add: Tensor, where: Any = 1, tokens: Tensor | None = None) -> Any:
        with lm.blocks[0].register_forward_hook(lambda module, args, output: output + where * add):
            return lm(texts(["baker"], "friend") if tokens is None else tokens)[:, -1].softmax(-1)

    vector, at_noun = (rows(texts(MANY[:4])) - rows(texts(ONE[:4])))[:, 2].mean(0), torch.eye(6)[2:3].T
    torch.manual_seed(3)
    random = [each * vector.norm() / each.norm() for each in torch.randn(300, 64)]
    verbs, chance = [], []
    for strength, where in ((1, 1), (8, 1), (1, at_noun), (8, at_noun)):
        shares = torch.cat([pushed(strength * each, where) for each in random])
        verbs.append(sum(WORDS[word] in MANY_DO for word in shares.argmax(1)))
        chance.append(shares[:, plural].sum(1).mean().item())
    assert (verbs[0] < 45, verbs[1] < 5, verbs[2] < 5, chance[2] < 0.05) == (True,) * 4
    assert chance[3] == pytest.approx(0.29, abs=0.04), "300 random vectors"
    changes = sum((pushed(each) - pushed(0 * each)).abs().sum() / 2 for each in random)
    assert changes > 0.4 * 300, "the layers react to most directions"
    with torch.enable_grad():
        share = pushed(zero := torch.zeros(64, requires_grad=True), tokens=texts(ONE[:4]))[:, plural].sum(1)
        (way,) = torch.autograd.grad(share.logit().sum(), zero)
    along = (vector @ way) * way / way.square().sum()
    works = [pushed(each, tokens=texts(ONE[4:], "baker"))[:, plural].sum(1).mean() for each in (along, vector - along)]
    assert (along.norm() < vector.norm() / 4, works[0] > 0.8, works[1] < 0.2) == (True,) * 3, "and these verbs to one"
    groups = {"plural": MANY_DO, "singular": ONE_DOES}
    slider = SteeringSlider(lm, "blocks.0", vector, "the baker near the friend", groups)
    runs, at_1 = slider._data["runs"]["every token"], slider._data["strengths"].index(1)
    assert [round(runs[kind][at_1]["shares"][2], 2) for kind in ("random", "vector")] == [0.42, 0.05]

    def train(found: Tensor) -> Tensor:
        optimizer = torch.optim.Adam([found.requires_grad_()], lr=0.001)
        for _ in range(30):
            optimizer.zero_grad()
            with torch.enable_grad():
                (-pushed(found, tokens=texts(ONE[:4]))[:, plural].sum(1).log().mean()).backward()
            optimizer.step()
        return found.detach()

    def share(each: Tensor, where: Any = 1) -> float:
        return pushed(each, where, texts(ONE[4:], "baker"))[:, plural].sum(1).mean().item()

    at_last, found = torch.eye(6)[-1:].T, train(torch.zeros(64))
    assert [round(share(each), 2) for each in (vector, found)] == [0.89, 0.91]
    assert (share(vector, at_noun) > 0.9, share(vector, at_last) < 0.1) == (True, True)
    assert (share(found, at_noun) < 0.2, share(found, at_last) > 0.9) == (True, True)
    draws = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    draws *= found.norm() / draws.norm(dim=1, keepdim=True)
    assert round(max(share(each) for each in draws), 2) == 0.77
    starts = [0.002 * torch.randn(64, generator=torch.Generator().manual_seed(seed)) for seed in range(10)]
    assert min(share(train(start.clone()), at_last) for start in starts) > 0.85
    assert max(share(start, at_last) for start in starts) < 0.1, "the starts themselves do nothing"
    pairs = [pair for pair in product([*MANY, *ONE], repeat=2) if pair[0] != pair[1]][::6]
    read, labels = rows(torch.cat([texts([noun], near) for noun, near in pairs])), torch.randint(2, (40, 1)).double()
    right = []
    for position in (-1, 2):
        with_1 = F.pad(read[:, position].double(), (0, 1), value=1)
        guess = with_1 @ torch.linalg.lstsq(with_1, labels, driver="gelsd").solution > 0.5
        right.append((guess == labels).sum().item())
    assert right[0] == len(pairs) == 40 > right[1], "at the noun, only 16 rows are different"


def test_data_parallel_calls_copies(says):
    says("*DataParallel* calls a copy of your module on each GPU, so store values in a list, not on `module`.")
    layer, seen = nn.Linear(2, 2), list[nn.Module]()

    def keep_on_module(module: Any, args: object, output: torch.Tensor) -> None:
        module.kept = output
        seen.append(module)

    layer.register_forward_hook(keep_on_module)
    copies = []
    for _ in range(2):  # what nn.DataParallel calls for each of its GPUs
        copy = layer._replicate_for_data_parallel()
        copy.weight, copy.bias = layer.weight, layer.bias
        copy(torch.ones(1, 2))
        copies.append(copy)
    assert seen == copies, "it fires for each of them"
    assert all(hasattr(copy, "kept") for copy in copies)
    assert not hasattr(layer, "kept"), "the copy has the attribute, and the module does not"


def test_a_hook_from_before_lora_stays_on_the_old_layer(says):
    says(
        "So an earlier hook gets the output of the old layer, without LoRA's part.",
        "After `merge_and_unload()` the old layer is back, with LoRA's part in its weight.",
    )
    from peft import LoraConfig, get_peft_model

    net, seen = nn.Sequential(nn.Linear(1, 1, bias=False)), []
    nn.init.constant_(net[0].weight, 3.0)
    old = net[0]
    old.register_forward_hook(lambda module, args, output: seen.append(output.item()))
    adapted = get_peft_model(net, LoraConfig(r=1, lora_alpha=1, target_modules=["0"]))
    nn.init.constant_(net[0].lora_A.default.weight, 2.0)
    nn.init.constant_(net[0].lora_B.default.weight, 5.0)
    assert net[0].base_layer is old
    assert adapted(torch.ones(1, 1)).item() == 13
    assert seen == [3], "without LoRA's part, 2 · 5"
    merged = adapted.merge_and_unload()
    assert merged[0] is old
    assert merged(torch.ones(1, 1)).item() == 13
    assert seen == [3, 13]


def test_all_hooks_include_the_one_of_the_library(says):
    says(
        "registers its own forward hook on the embedding.",
        'If you remove "all hooks", you also remove this one.',
    )
    gpt = gpt2()
    embedding = gpt.transformer.wte.requires_grad_(False)
    gpt.enable_input_require_grads()
    assert [entry.layer for entry in hookscope.census(gpt)] == ["transformer.wte"]
    assert embedding(torch.tensor([1])).requires_grad
    hookscope.census(gpt).remove_all()
    assert not embedding(torch.tensor([1])).requires_grad


def test_a_reentrant_checkpoint_needs_the_hook_on_the_embedding(says):
    says(
        "`enable_input_require_grads()`, which is used with LoRA and checkpoints, registers its own forward hook on "
        "the embedding.",
    )
    from torch.utils.checkpoint import checkpoint

    def loss(asked: bool, reentrant: bool) -> torch.Tensor:
        embedding, adapter = nn.Embedding(4, 3).requires_grad_(False), nn.Linear(3, 3)
        handle = embedding.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
        if not asked:
            handle.remove()
        with catch_warnings(action="ignore"):
            made: Any = checkpoint(adapter, embedding(torch.tensor([1, 2])), use_reentrant=reentrant)
        return made.sum()

    loss(asked=True, reentrant=True).backward()
    loss(asked=False, reentrant=False).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss(asked=False, reentrant=True).backward()


BEGINNINGS = (
    "My new phone is", "The hotel room was", "Our teacher is", "The book that I read was", "My neighbor is",
    "The meeting this morning was", "The city where I live is", "The garden behind our house is", "The train ride was",
)  # fmt: skip
"""Nine texts to steer; with the vector of the chapter at strength -2, three of them continue with bad news."""


@pytest.mark.slow  # the cells of 16.6 are the same runs; `make check` runs this one when the lesson changes
def test_what_steers_smollm2(says):
    says(
        "SmolLM2 from chapter 14 reads four kind texts and four unkind ones.",
        "The row of the first token is a hundred times as long as any other row,",
        "Two of the eight texts are about food, and none is about the weather.",
        "We tried nine more, such as *The train ride was*.",
        "Three of them continue with *a nightmare*, but the other six continue with no bad news.",
    )
    lesson = Path(__file__).with_name("lesson.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^kind = .*?^    return english, tokenizer, mean_row[^\n]*", lesson, re.DOTALL | re.MULTILINE)
    names = {"functools": functools, "hookscope": hookscope, "samples": samples, "torch": torch}
    exec(code, names)
    model, tokenizer, vector = names["load_english"]()  # type: ignore[operator]
    for name in ("food", "weather", "concert"):
        for strength, text in read_back(name).items():
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            with hookscope.edit(model) as changes, torch.no_grad():
                changes.add("model.layers.16", float(strength.split()[1]) * vector)
                first, second = model(ids).logits[0, -11:-1].topk(2).values.T
            assert (first - second).min() > 0.02, "no text hangs on a rounding"
    for text in (*names["kind"], *names["unkind"]):  # type: ignore[misc]
        with hookscope.capture(model, "model.layers.16") as seen, torch.no_grad():
            model(**tokenizer(text, return_tensors="pt"))
        lengths = seen["model.layers.16"].output[0].norm(dim=1)
        assert lengths[0] > 100 * lengths[1:].max()
    continued = list[str]()
    for text in BEGINNINGS:
        with hookscope.edit(model) as changes:
            changes.add("model.layers.16", -2 * vector)
            tokens = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=10, do_sample=False)
        continued.append(tokenizer.decode(tokens[0])[len(text) :])
    assert [text.startswith(" a nightmare") for text in continued].count(True) == 3, continued
