"""A hundred more sentences, of chapters 11 to 21, were put to the test: what refuted some of them is run here."""

from __future__ import annotations

import gc
import io
import math
import weakref
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import hookscope
from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course import training_runs
from hookscope_course.cloakroom import cloakroom_lists, cloakroom_lm
from hookscope_course.scenes import SteeringSlider, stations
from hookscope_course.stories import gift_stories, repeated_rows
from tests.course.test_hundred_sentences import text_of

WORDS, TOKENS = samples.STORY_WORDS, samples.story_tokens


def says(chapter: str, sentences: str) -> None:
    """Fail if a chapter has one of the sentences, or parts of sentences, no more; " … " is between them."""
    text = text_of(chapter, "lesson.md", "guesses.toml").replace("\\ ", "")
    assert [each for each in sentences.split(" … ") if each not in text] == []


def refuses(error: type[Exception], match: str, call: Callable[..., object], *args: Any) -> None:
    with catch_warnings(action="ignore"), pytest.raises(error, match=match):
        call(*args)


def test_what_chapter_11_says_of_hooks_that_watch_and_of_what_they_keep() -> None:
    says(
        "11",
        "The other two hooks also hold the previous output, but only `latest` returns it. "
        "… because the first `pop` returns the None. … The output of `stem`, the output of `relu` and the sum share "
        "the same memory. … `mix` and `head` return new tensors, … A clone without `detach()` keeps the whole "
        "graph alive.",
    )
    latest, layer, append = list[Any]([None]), nn.Identity(), list[Any].append
    layer.register_forward_hook(lambda module, args, output: append(latest, output) or latest.pop(0))
    assert [layer(torch.full((1,), float(value))).item() for value in (5, 3, 8)] == [5, 5, 3]
    assert len(latest) == 1, "it keeps no older output, and the other two do"
    stem = nn.Linear(1, 1)(torch.ones(2, 1))
    mix = nn.Linear(1, 1)(relu := nn.ReLU(inplace=True)(stem))
    assert stem.data_ptr() == relu.data_ptr() == relu.detach().add_(1).data_ptr() != mix.data_ptr()
    y = torch.ones(1, requires_grad=True).exp()
    clone: Any = (y * y).clone()
    saved = clone.grad_fn.next_functions[0][0]
    assert saved._saved_self is not None
    clone.backward()
    refuses(RuntimeError, "second time", lambda: saved._saved_self)


def test_what_chapter_12_says_of_saved_tensors() -> None:
    says(
        "12",
        "Each one is freed when the backward pass has used it. … and that is the same tensor. So both share one "
        "block, … The largest tensors are kept by two layers, … the result would keep itself alive. … only the inner "
        "one runs. … "
        "`torch.func.grad` refuses them with a RuntimeError.",
    )
    packs, counts, outer, blocks = list[Any](), list[int](), list[Any](), dict[int, list[int]]()
    ways: list[tuple[Any, bool]] = [(lambda tensor: tensor, True), (torch.Tensor.detach, False)]

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        packs.append(weakref.ref(packed := partial(torch.Tensor.detach, tensor)))
        return packed

    def note(tensor: Tensor) -> Tensor:
        blocks.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor.nbytes)
        return tensor.detach()

    def count(grad: Tensor) -> None:
        counts.append(sum(each() is not None for each in packs))

    h: Any = torch.ones(1, 2, requires_grad=True)
    with saved_tensors_hooks(pack, lambda packed: packed()):
        for _ in range(4):
            h = nn.Linear(2, 2)(h).sin()
            h.register_hook(count)
    h.sum().backward()
    assert counts == [12, 9, 6, 3], "they are freed step by step, not when the pass is over"
    with saved_tensors_hooks(note, lambda tensor: tensor):
        samples.digit_cnn()(samples.digits("test").images[:4].clone())
    assert [len(each) for each in sorted(blocks.values(), key=max)][-4:] == [2, 1, 2, 2]
    for kept, lives in ways:
        with saved_tensors_hooks(outer.append, lambda tensor: tensor), saved_tensors_hooks(kept, lambda tensor: tensor):
            ref = weakref.ref(torch.ones(2, requires_grad=True).exp())
            refuses(RuntimeError, "saved tensor hooks", torch.func.grad(torch.exp), torch.tensor(1.0))
        gc.collect()
        assert (ref() is not None, outer) == (lives, [])


@torch.no_grad()
def test_what_chapter_12_says_of_pushes() -> None:
    says(
        "12",
        "and hardly any other scan is that near. … in the test data, it turns every 8 into a 1.",
    )
    net, train, test, one = samples.digit_cnn(), samples.digits("train"), samples.digits("test"), samples.digit(1)
    of_train, of_test, of_one = (net.block3(net.block2(net.block1(each))) for each in (train.images, test.images, one))
    means = [of_train[train.labels == digit].mean(0) for digit in range(10)]
    to_1 = means[1] - means[8]
    before, after = net.head(of_test).argmax(1), net.head(of_test + 0.04 * to_1).argmax(1)
    assert (net.head(of_test[(before == 8) | (test.labels == 8)] + to_1).argmax(1) == 1).all()
    assert (net.head(of_train[train.labels == 8] + to_1).argmax(1) != 1).sum() == 2, "not of every 8 in the train data"
    top, gap = net(test.images).topk(2).values, net(one)[0, 8] - net(one)[0, 1]
    assert (top[:, 0] - top[:, 1] < gap - 1e-3).sum() == 3, "three are even nearer to some border"
    assert ((after != before).sum(), net.head(of_one + 0.04 * to_1).argmax()) == (1, 1), "only the 1 turns"


def test_what_chapter_13_says_of_buckets(tmp_path: Path) -> None:
    says(
        "13",
        "In the first step, one bucket holds all gradients. From the second step on, a bucket is full when it holds "
        "25 MiB or more, and the first one at 1 MiB. A communication hook runs once for each bucket and step. … It "
        "sends the gradients of the biases as they are. … has 26,530 gradients. … You can register one communication",
    )

    class Weights(nn.Module):
        def __init__(self, *mib: int) -> None:
            super().__init__()
            self.all = nn.ParameterList(torch.zeros(2**18 * each) for each in mib)

        def forward(self, x: Tensor) -> Any:
            return sum((p * x).sum() for p in self.all)

    def steps(net: nn.Module, hook: Any, x: Tensor, state: object = None) -> list[list[float]]:
        seen, found = list[float](), list[list[float]]()

        def note(state, bucket):  # type: ignore[no-untyped-def]
            seen.append(bucket.buffer().nbytes / 2**20)
            return hook(state, bucket)

        (ddp := DistributedDataParallel(net)).register_comm_hook(state, note)
        refuses(RuntimeError, "only be called once", ddp.register_comm_hook, None, note)
        for _ in range(3):
            seen.clear()
            ddp(x).sum().backward()
            found.append([*seen])
        return found

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        plain, one = default_hooks.allreduce_hook, torch.ones(1)
        assert steps(Weights(1, 1, 1), plain, one) == [[3], [1, 2], [1, 2]]
        assert steps(Weights(20, 20, 30), plain, one) == [[70], [30, 40], [30, 40]], "over 25"
        net, state = samples.digit_cnn(), powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        steps(net, powerSGD_hook.powerSGD_hook, samples.digits("test").images[:4], state)
    finally:
        dist.destroy_process_group()
    sent = sum(sum(p.flatten(1).shape) if p.dim() > 1 else len(p) for p in net.parameters())
    assert state.compression_stats()[1:] == (26530, sent)  # type: ignore[no-untyped-call]


@torch.no_grad()
def test_what_chapter_15_says_of_heads() -> None:
    says(
        "15",
        "the probability of *Mary* changes by less than 0.02. … it *rises* by 1.26 … it falls by 0.24. … It falls by "
        "1.00: … the effect grows from 0.01 to 0.30. Much of that comes from the squeezing. … nearly all words stayed "
        "right. … but the model gets most words wrong only without head 3. … The interaction is as large as in your "
        "story in one story out of five, with either sign. Its mean is nearly 0, because the signs cancel.",
    )
    lm, (mary, leo), rows = samples.story_lm(), (WORDS.index("Mary"), WORDS.index("Leo")), repeated_rows(30, seed=5)
    clean = TOKENS("when Mary and Leo went to the park , Leo gave the ball to")

    def logits(tokens: Tensor, *off: int, to: Tensor | None = None) -> Tensor:
        with hookscope.edit(lm) as edited:
            for part in (slice(16 * head, 16 * head + 16) for head in off):
                values = 0.0 if to is None else to[:, part]
                edited.set("blocks.1.attn.proj", values, hookscope.at[..., part], to="input")
            return lm(tokens)  # type: ignore[no-any-return]

    last = [logits(clean, *off)[0, -1] for off in ((), (0,), (1,), (2,), (3,), (0, 3))]
    p, gap = [each.softmax(-1)[mary].item() for each in last], [(each[mary] - each[leo]).item() for each in last]
    falls = (gap[0] - gap[3], gap[0] - gap[4], gap[1] - gap[5], p[0] - p[4], p[1] - p[5])
    assert [round(each, 2) for each in falls] == [-1.26, 0.24, 1.0, 0.01, 0.3]
    assert 0.01 < max(abs(each - p[0]) for each in p[2:5]) < 0.02
    stories = gift_stories(200)
    gaps = [
        (out.gather(1, stories.getters[:, None]) - out.gather(1, stories.givers[:, None]))[:, 0]
        for out in (logits(stories.tokens, *off)[:, -1] for off in ((), (0,), (3,), (0, 3)))
    ]
    interaction, ours = gaps[1] + gaps[2] - gaps[0] - gaps[3], gap[1] + gap[4] - gap[0] - gap[5]
    assert [int((sign * interaction >= ours).sum()) for sign in (1, -1)] == [15, 25]
    assert abs(float(interaction.mean())) < float(interaction.std()) / 5
    assert 90 < int((gaps[2] < gaps[1]).sum()) < 110, "in many stories head 3 is needed more, in others head 0"
    odds = torch.tensor(p).logit()
    assert 0.1 < p[1] - (odds[1] - odds[0] + odds[4]).sigmoid() < 0.2, "half of 0.30, if these logits just add up"
    with hookscope.capture(lm, "blocks.1.attn.proj", inputs=True) as seen:
        lm(repeated_rows(30, seed=6))
    mean = seen["blocks.1.attn.proj"].args[0].mean(0)
    right = [(logits(rows, *off, to=mean).argmax(-1)[:, 9:-1] == rows[:, 10:]).float().mean() for off in ((0, 2), (3,))]
    assert right[0] > 0.95 > 0.5 > right[1] > 0.2, "without head 3, the others still copy some"


@torch.no_grad()
def test_what_chapter_16_says_of_vectors() -> None:
    says(
        "16",
        "They seldom turn *sleeps* into *sleep*, and they break the text much earlier: … random vectors do almost "
        "nothing. … the 20 random vectors give the plural verbs a probability of 0.39 on average. … The rest alone "
        "works as well as the whole, … 40 different rows, a probe gets all 40 right even if the labels are random.",
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
    assert chance[3] == pytest.approx(0.29, abs=0.04), "it is 0.39 with the 20 of the slider only"
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
    found = torch.zeros(64, requires_grad=True)
    optimizer = torch.optim.Adam([found], lr=0.001)
    for _ in range(30):
        optimizer.zero_grad()
        with torch.enable_grad():
            (-pushed(found, tokens=texts(ONE[:4]))[:, plural].sum(1).log().mean()).backward()
        optimizer.step()
    common = (found @ vector) * vector / vector.square().sum()
    does = [pushed(each, tokens=texts(ONE[4:], "baker"))[:, plural].sum(1).mean() for each in (found, found - common)]
    assert min(does) > 0.9, "what is at a right angle to the vector does it alone"
    pairs = [pair for pair in product([*MANY, *ONE], repeat=2) if pair[0] != pair[1]][::6]
    read, labels = rows(torch.cat([texts([noun], near) for noun, near in pairs])), torch.randint(2, (40, 1)).double()
    right = []
    for position in (-1, 2):
        with_1 = F.pad(read[:, position].double(), (0, 1), value=1)
        guess = with_1 @ torch.linalg.lstsq(with_1, labels, driver="gelsd").solution > 0.5
        right.append((guess == labels).sum().item())
    assert right[0] == len(pairs) == 40 > right[1], "at the noun, only 16 rows are different"


def test_what_chapter_18_says_of_copies_and_of_other_forms_of_a_model() -> None:
    says(
        "18",
        "`deepcopy` does not copy a function: … It does copy an object, … `deepcopy` copies the dictionary of hooks, "
        "too. … raises an error when you save. … "
        "`torch.export` runs the model once, … `torch.jit.trace` bakes a hook in as well. `torch.jit.script` raises an "
        "error unless the arguments of the hook have types. Both are deprecated.",
    )
    model, x, calls, kept = stations.make_net(), torch.tensor([[2.0, 5.0]]), list[int](), list[int]()

    def ten_times(module, args, output):  # type: ignore[no-untyped-def]
        calls.append(1)
        return 10 * output

    def typed(self, args: tuple[Tensor], output: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return 10 * output

    model.get_parameter("0.weight").register_hook(lambda grad: calls.append(2))  # type: ignore[no-untyped-call]
    model(x).backward()
    model[0].register_forward_hook(ten_times)
    model[0].register_forward_hook(partial(lambda notes, *_: notes.append(1), kept))
    twin = deepcopy(model)
    assert twin.get_parameter("0.weight").grad is None
    calls.clear()
    twin(x).backward()
    assert (calls, kept) == ([1], []), "the hook of the weight stays behind, and the list in partial is copied"
    refuses(AttributeError, "", torch.save, model, io.BytesIO())
    model = stations.make_net()
    with model[0].register_forward_hook(ten_times), catch_warnings(action="ignore"):
        calls.clear()
        exported: Any = torch.export.export(model, (x,))
        assert (exported.module()(x).item(), len(calls)) == (60, 1)
        refuses(RuntimeError, "expected the input argument to be typed", torch.jit.script, model)
        traced = torch.jit.trace(model, (x,))  # type: ignore[no-untyped-call]
    with model[0].register_forward_hook(typed), catch_warnings(action="ignore"):
        scripted: Any = torch.jit.script(model)
    assert (traced(x).item(), scripted(x).item(), model(x).item()) == (60, 60, 6)
    fast: Any = torch.compile(model, backend="eager")
    fast(x)
    with model[0].register_forward_hook(ten_times):
        calls.clear()
        assert (fast(x).item(), len(calls), model(x).item()) == (6, 0, 60)


@pytest.mark.parametrize(("before", "after", "found"), [((1,), (5, 1), [1, 0]), ((1, 5), (7,), [0])])
def test_what_chapter_18_says_of_other_batch_sizes(before: Any, after: Any, found: list[int]) -> None:
    says("18", "The first batch of another size makes torch compile again, and then it finds your hook.")
    torch.compiler.reset()
    model, x, calls = stations.make_net(), torch.ones(1, 2), list[int]()
    fast = torch.compile(model, backend="eager")
    assert [len(fast(x.repeat(rows, 1))) for rows in before] == [*before]
    model[0].register_forward_hook(lambda *_: calls.append(1))
    for rows, count in zip(after, found, strict=True):
        calls.clear()
        fast(x.repeat(rows, 1))
        assert len(calls) == count
    torch.compiler.reset()


def test_what_chapter_20_says_of_nan() -> None:
    says(
        "20",
        "float16 has no number as small as 1e-8: … such as 1e-6. … The squares are the first to overflow: … The NaN "
        "comes later, from a backward pass. The gradient of a square is 2 · x, and above 32,752 this is inf in float16."
        " … So a weight becomes NaN, and one step later the loss. … `mend` changes nothing as long as all is finite.",
    )
    assert [bool(torch.zeros(1).half() + small) for small in (1e-8, 1e-6)] == [False, True]
    for seed in (2, 4):
        net, large, lost, steps = training_runs.norm_net(seed), list[int](), list[int](), list[int]()
        net.register_forward_pre_hook(lambda *_, steps=steps: steps.append(1))

        def look(module: nn.Module, args: Any, output: Any, large: Any = large, steps: Any = steps) -> None:
            large += [len(steps)] * bool(output.abs().max() > 32752)

        def look_back(weight: Any, lost: Any = lost, steps: Any = steps) -> None:
            lost += [len(steps)] * bool(weight.grad.isnan().any())

        net.block1.linear.register_forward_hook(look)
        net.block1.linear.weight.register_post_accumulate_grad_hook(look_back)  # type: ignore[no-untyped-call]
        run = training_runs.record_run(net, training_runs.lost_run)
        at = run.names.index("block1.linear")
        assert run.first
        assert run.first[1].endswith("square")
        assert large[0] == lost[0] == run.loss, "with steps from 1: the step before the loss is NaN"
        assert not any(math.isinf(sizes[at]) for sizes in run.largest), "it does not overflow itself"
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()]
    assert torch.equal(finite.view(torch.int16), finite.nan_to_num().view(torch.int16)), "-0, too"


@torch.no_grad()
def test_what_chapter_21_says_of_lists() -> None:
    says(
        "21",
        "the answer of one is on no list of the other. … because the thing differs from list to list. … Without the "
        "hook, all of them do. … A shorter vector does less harm.",
    )
    lm, vectors = cloakroom_lm(), list[Tensor]()
    for seed, name in ((1, "Clara"), (2, "Paul")):
        with hookscope.capture(lm, "blocks.0") as seen:
            lm(cloakroom_lists(100, seed=seed, comes=name).tokens)
        vectors.append(seen["blocks.0"].output[:, -1].mean(0))
    push = torch.eye(14)[-1:].T * (vectors[0] - vectors[1])
    for seed in range(3, 8):
        lists, right = cloakroom_lists(100, seed=seed), list[int]()
        assert len({*lists.answers.tolist()}) == 8, "eight things, so 100 lists cannot each have a different one"
        assert not (lists.tokens == lists.other_answers[:, None]).any()
        for strength in (0, 0.25, 0.5, 0.75, 1):
            with lm.blocks[0].register_forward_hook(lambda module, args, out, by=strength: out + by * push):
                right.append(int((lm(lists.tokens)[:, -1].argmax(-1) == lists.answers).sum()))
        assert right == sorted(right, reverse=True)
        assert right[0] == 100 > 2 * right[-1]
