"""Exercises of chapter 05: draw channels at random, keep outputs from in-place operations, find silent channels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch
from torch import nn

from hookscope import census
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


def _numbers(channels: object, call: str) -> list[int] | Wrong:
    if isinstance(channels, torch.Tensor):
        channels = channels.tolist()
    if not isinstance(channels, list | tuple | range) or not all(type(item) is int for item in channels):
        return Wrong(f"`{call}` returned {channels!r}; it should return a list of channel numbers")
    return list(channels)


def _check_draw(draw: Callable[[torch.Tensor, int], object]) -> Wrong | None:
    before = torch.get_rng_state()
    choices = {}
    for seed in (1, 2, 3):
        many = _numbers(draw(torch.zeros(32, 2, 2), seed), f"draw(maps, {seed})")
        if isinstance(many, Wrong):
            return many
        if any(not 0 <= channel < 32 for channel in many):
            return Wrong(f"of 32 maps you drew number {max(many)}; the last one is 31")
        if len(set(many)) < len(many):
            twice = next(channel for channel in many if many.count(channel) > 1)
            return Wrong(f"with seed {seed} you drew channel {twice} more than once: `randint` draws with replacement")
        if len(many) != 16:
            return Wrong(f"of 32 maps you drew {len(many)}, not 16")
        if many == list(range(16)):
            return Wrong(f"with seed {seed} you drew channels 0 to 15 in their order; `enumerate` gives places")
        choices[seed] = many
    if choices[1] == choices[2]:
        return Wrong("seed 1 and seed 2 give the same channels; use the seed that you are given")
    again = _numbers(draw(torch.zeros(32, 2, 2), 1), "draw(maps, 1)")
    if isinstance(again, Wrong) or again != choices[1]:
        return Wrong("two calls with seed 1 give different channels; the seed must decide")
    few = _numbers(draw(torch.zeros(3, 2, 2), 1), "draw(maps, 1)")
    if isinstance(few, Wrong) or sorted(few) != [0, 1, 2]:
        return Wrong(f"of 3 maps you drew {few}; there are 0, 1 and 2")
    if not torch.equal(before, torch.get_rng_state()):
        return Wrong(
            "the channels are right, but you set torch's own random state, on which somebody's training depends; "
            "take a `torch.Generator()`"
        )
    return None


q1 = Exercise(
    "05.1",
    question="A colleague draws 16 channels of `maps`, a tensor (C, H, W). They are always the same. Find the defect "
    "and mend it. `draw` returns a list: 16 different channel numbers, or all if there are fewer. The seed decides "
    """which, and nobody else's random numbers change.
```
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, len(maps), (16,), generator=generator)
    return [channel for channel, _ in enumerate(numbers)]
```""",
    difficulty="easy",
    minutes=4,
    check=_check_draw,
    why="`randperm` shuffles the numbers that there are, so none comes twice, and a slice takes what is there.",
    hints=(
        "What does `enumerate` give first, and what does the colleague keep of it?",
        "`torch.randint` can draw a number twice, and more numbers than there are. `torch.randperm` shuffles.",
        "`torch.randperm(len(maps), generator=generator)[:16].tolist()`.",
    ),
    solution="""
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(maps), generator=generator)[:16].tolist()

q1.check(draw)
""",
    wrong={
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, len(maps), (16,), generator=generator)
    return [channel for channel, _ in enumerate(numbers)]

q1.check(draw)
""": "you drew channels 0 to 15 in their order",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, len(maps), (16,), generator=generator).tolist()

q1.check(draw)
""": "more than once: `randint` draws with replacement",
        """
def draw(maps, seed):
    torch.manual_seed(seed)
    return torch.randperm(len(maps))[:16].tolist()

q1.check(draw)
""": "you set torch's own random state",
        """
def draw(maps, seed):
    return torch.randperm(len(maps))[:16].tolist()

q1.check(draw)
""": "two calls with seed 1 give different channels",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(len(maps), generator=generator)[:16].tolist()

q1.check(draw)
""": "seed 1 and seed 2 give the same channels",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(32, generator=generator)[:16].tolist()

q1.check(draw)
""": "of 3 maps you drew",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return (1 + torch.randperm(len(maps), generator=generator)).tolist()

q1.check(draw)
""": "of 32 maps you drew number 32; the last one is 31",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(maps), generator=generator).tolist()

q1.check(draw)
""": "of 32 maps you drew 32, not 16",
        """
def draw(maps, seed):
    generator = torch.Generator().manual_seed(seed)
    return maps[torch.randperm(len(maps), generator=generator)[:16]]

q1.check(draw)
""": "it should return a list of channel numbers",
    },
)


class _AddsInPlace(nn.Module):
    """Writes into what its two layers returned: by a ReLU in place, and by `+=`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.first.weight, 2.0)
        nn.init.constant_(self.second.weight, 5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        y: torch.Tensor = self.second(x)
        y += 1
        return y


def _check_keep_outputs(keep_outputs: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    model, x = _AddsInPlace(), torch.tensor([[-3.0], [3.0]])
    results: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, args, output: results.append(output))
    kept = keep_outputs(model, x)
    if not results:
        return Wrong("your function never called `model(x)`")
    if not isinstance(kept, dict):
        return Wrong(f"your function returned {kept!r}; it should return the dictionary `kept`")
    if not model.relu.inplace:
        return Wrong("you set `inplace` of the caller's model to False; leave the model as it is, and copy")
    if set(kept) != {"first", "relu", "second"}:
        return Wrong(f"`kept` has the names {', '.join(map(str, kept)) or '(none)'}; it should have every child's")
    returned = {"first": [-6.0, 6.0], "relu": [0.0, 6.0], "second": [0.0, 30.0]}
    for name, expected in returned.items():
        tensor = kept[name]
        if not isinstance(tensor, torch.Tensor):
            return Wrong(f"under {name!r} you kept a {type(tensor).__name__}; keep a tensor")
        values = tensor.detach().flatten().tolist()
        if values != expected:
            return Wrong(f"{name!r} returned {_whole(expected)}, but your record says {_whole(values)}")
    if not results[-1].requires_grad:
        return Wrong("the record is right, but the model's output has lost its gradient: a hook of yours returns")
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("the numbers are right, but what you kept still holds the graph; `detach()` lets go of it")
    if len(census(model, include_global=False)) > 1:
        return Wrong("your hooks are still on the model; remove every handle")
    return None


def _whole(values: Iterable[float]) -> str:
    return str([round(value, 2) if value % 1 else int(value) for value in values])


q2 = Exercise(
    "05.2",
    question="A colleague keeps what each child of a model returns. In the record, a Linear layer has no negative "
    """values, though it returned some. Find the defect and mend it. Leave the model as it is.
```
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept
```""",
    difficulty="medium",
    minutes=4,
    check=_check_keep_outputs,
    why="The copy was made while the hook ran, so what wrote into the output later did not reach it.",
    hints=(
        "Which memory does `output.detach()` use?",
        "The copy must be made in the hook. After the call it is too late.",
    ),
    solution="""
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach().clone()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""",
    wrong={
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "'first' returned [-6, 6], but your record says [0, 6]",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return {name: output.clone() for name, output in kept.items()}

q2.check(keep_outputs)
""": "'first' returned [-6, 6], but your record says [0, 6]",
        """
def keep_outputs(model, x):
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "leave the model as it is, and copy",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.clone()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "what you kept still holds the graph",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach().clone()
            return kept[name]
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "'first' returned [-6, 6], but your record says [0, 6]",
        """
def keep_outputs(model, x):
    kept = {}
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach().clone()
        layer.register_forward_hook(hook)
    model(x)
    return kept

q2.check(keep_outputs)
""": "your hooks are still on the model",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach().clone()
            return output.detach()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "has lost its gradient: a hook of yours returns",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.tolist()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "under 'first' you kept a list; keep a tensor",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output):
            kept[name] = output.detach().clone()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return kept

q2.check(keep_outputs)
""": "`kept` has the names second; it should have every child's",
        """
def keep_outputs(model, x):
    kept, handles = {}, []
    for name, layer in model.named_children():
        def hook(module, args, output, name=name):
            kept[name] = output.detach().clone()
        handles.append(layer.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()

q2.check(keep_outputs)
""": "your function returned None",
        """
def keep_outputs(model, x):
    kept = {}
    for name, layer in model.named_children():
        x = layer(x)
        kept[name] = x.detach().clone()
    return kept

q2.check(keep_outputs)
""": "never called `model(x)`",
    },
)


class _MinusOne(nn.Module):
    """Returns x - 1, so that what comes out is not what goes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


_BATCHES = (3, 3, 1)  # pictures in each batch
_SHAPE = (5, 7, 11)  # channels, rows, columns: no other tensor has this shape


def _batches() -> list[torch.Tensor]:
    """Make batches, after which channels 1 and 4 are silent."""
    batches = [torch.zeros(pictures, *_SHAPE) for pictures in _BATCHES]
    for batch in batches:
        batch[:, 0] = 1
    batches[0][1, 2, 3, 4] = 1  # channel 2: one place of one picture, in the first batch only
    batches[-1][0, 3, 0, 0], batches[-1][0, 3, 0, 1] = 1, -1  # channel 3: in the last batch, and its sum is 0
    return [batch + 1 for batch in batches]


def _maps_kept(batches: list[torch.Tensor]) -> int:
    """Count the pictures whose maps are still in memory; the batches themselves are not maps."""
    return sum(
        len(found) if found.dim() == 4 else 1
        for found in gc.get_objects()
        if type(found) is torch.Tensor and found.shape[-3:] == _SHAPE and not any(found is batch for batch in batches)
    )


def _check_silent_channels(silent_channels: Callable[[nn.Module, nn.Module, object], object]) -> Wrong | None:
    layer, batches = _MinusOne(), _batches()
    model = nn.Sequential(layer, nn.Flatten())
    calls, kept = 0, []

    def look(module: nn.Module, args: object) -> None:
        nonlocal calls
        calls += 1
        if calls in (1, len(batches)):
            kept.append(_maps_kept(batches))

    model.register_forward_pre_hook(look)
    answer = silent_channels(layer, model, iter(batches))
    if not calls:
        return Wrong("your function never called `model(batch)`")
    if calls < len(batches):
        return Wrong(f"you called the model with {calls} of {len(batches)} batches; go through all of them")
    channels = _numbers(answer, "silent_channels(…)")
    if isinstance(channels, Wrong):
        return channels
    if sorted(channels) != [1, 4]:
        return Wrong(_why_not(channels))
    if len(census(layer, include_global=False)):
        return Wrong("the channels are right, but your hook is still on the layer; remove its handle")
    if kept[1] - kept[0] > _BATCHES[0]:
        return Wrong(
            f"the channels are right, but you kept the maps of {kept[1] - kept[0]} pictures; "
            "keep one number per channel"
        )
    return None


def _why_not(channels: list[int]) -> str:
    said = f"you found {channels}"
    if sorted(channels) == [1, 3, 4]:
        return f"{said}, but channel 3 answers in the last batch, with 1 and -1: their sum is 0, they are not"
    if sorted(channels) == [1, 2, 4]:
        return f"{said}, but channel 2 answers once, in the first batch; let no batch wipe out the one before"
    return f"{said}; in these batches channels 1 and 4 are zero at every place of every picture, and no others"


q3 = Exercise(
    "05.3",
    question="Write `silent_channels(layer, model, batches)`. `batches` yields tensors of pictures. The function calls "
    "the model with each of them. It returns a list: the channels of `layer` that are zero at every place of every "
    "picture. Use a forward hook that keeps one number per channel, not the maps. Leave no hook behind.",
    difficulty="medium",
    minutes=6,
    check=_check_silent_channels,
    why="The hook turned the maps of each batch into one number per channel, and let the maps go.",
    hints=(
        "Section 5 has such a hook: `count`. Where does it put what it counts?",
        "`(output != 0).sum(dim=(0, 2, 3))` is one number per channel. Add up over the batches.",
        "At the end: `(total == 0).nonzero().flatten().tolist()`.",
    ),
    solution="""
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((output != 0).sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(count):
        for batch in batches:
            model(batch)
    return (sum(counts) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""",
    wrong={
        """
def silent_channels(layer, model, batches):
    maps = []

    def keep(module, args, output):
        maps.append(output.detach().clone())

    with layer.register_forward_hook(keep):
        for batch in batches:
            model(batch)
    return (torch.cat(maps) == 0).all(dim=3).all(dim=2).all(dim=0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "you kept the maps of 6 pictures",
        """
def silent_channels(layer, model, batches):
    counts = {}

    def count(module, args, output):
        counts["last"] = (output != 0).sum(dim=(0, 2, 3))

    with layer.register_forward_hook(count):
        for batch in batches:
            model(batch)
    return (counts["last"] == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "channel 2 answers once, in the first batch",
        """
def silent_channels(layer, model, batches):
    sums = []

    def add(module, args, output):
        sums.append(output.sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(add):
        for batch in batches:
            model(batch)
    return (sum(sums) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "their sum is 0, they are not",
        """
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((output != 0).sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(count):
        model(next(iter(batches)))
    return (sum(counts) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "with 1 of 3 batches",
        """
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((output != 0).sum(dim=(0, 2, 3)))

    layer.register_forward_hook(count)
    for batch in batches:
        model(batch)
    return (sum(counts) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "your hook is still on the layer",
        """
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((args[0] != 0).sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(count):
        for batch in batches:
            model(batch)
    return (sum(counts) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "you found []; in these batches channels 1 and 4 are zero",
        """
def silent_channels(layer, model, batches):
    some = []

    def look(module, args, output):
        some.append((output == 0).flatten(2).any(dim=2).sum(dim=0))

    with layer.register_forward_hook(look):
        for batch in batches:
            model(batch)
    return sum(some).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "you found [1, 2, 3, 4]; in these batches",
        """
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((output != 0).sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(count):
        for batch in batches:
            layer(batch)
    return (sum(counts) == 0).nonzero().flatten().tolist()

q3.check(silent_channels)
""": "never called `model(batch)`",
        """
def silent_channels(layer, model, batches):
    counts = []

    def count(module, args, output):
        counts.append((output != 0).sum(dim=(0, 2, 3)))

    with layer.register_forward_hook(count):
        for batch in batches:
            model(batch)
    return sum(counts) == 0

q3.check(silent_channels)
""": "it should return a list of channel numbers",
    },
)
