"""Everything on the cheat sheet: its drawing, its rows, what torch says; and nothing that torch has is missing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, distributed, nn

from hookscope_course.history import facts, records
from tests.course.cheat_sheet import (  # other_hooks adds its demonstrations
    ERRORS,
    LISTED,
    OPTIMIZER,
    PAGE,
    ROWS,
    SHOWN,
    TEXT,
    WORDS,
    Noting,
    X,
    optimizer_of,
    other_hooks,  # noqa: F401
    x_that_requires,
)
from tests.course.cheat_sheet.passes import PASSES, SAYS


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", PASSES)
def test_the_words_of_a_row_are_facts_of_torch(name: str) -> None:
    row = ROWS[name]
    assert [row.fires, row.returns, row.trap][: len(PASSES[name])] == [words for words, _ in PASSES[name]]
    for words, answers in PASSES[name]:
        for fact, answer in answers.items():
            assert answer in SAID if fact == SAYS else records.holds(fact, answer), f"{words}: {fact}"


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_does_what_it_says(name: str) -> None:
    row = ROWS[name]
    assert (row.fires, row.returns, row.trap) == WORDS[name], "say in the demonstration what the sheet says now"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SHOWN[name](row)


def test_every_row_is_shown() -> None:
    assert sorted(ROWS) == sorted([*SHOWN, *PASSES])
    assert len(ROWS) + len(ERRORS) == TEXT.count("\n| ") - 6, "a line of a table is not read here"


def test_a_call_stands_in_one_piece_on_one_line() -> None:
    for row in ROWS.values():
        assert f"`{row.code}` |" in TEXT
        compile(f"{row.code} pass" if row.code.startswith("with ") else row.code, "<row>", "exec")


# --- what torch has


def test_every_hook_of_torch_is_there() -> None:
    places = (
        nn.Module,
        nn.modules.module,
        Tensor,
        torch.autograd.graph,
        torch.autograd.graph.Node,
        torch.optim.Optimizer,
        OPTIMIZER,
        nn.parallel.DistributedDataParallel,
    )
    names = {name for place in places for name in dir(place) if re.match(r"register_\w*hook", name)}
    without_row = {*re.findall(r"`(register_\w+_hook)`", TEXT)}
    assert names == {row.name.rpartition(".")[2] for row in ROWS.values()} - {"saved_tensors_hooks"} | without_row
    assert len(names) >= 26


def test_a_public_name_with_hook_in_it_is_shown_or_left_out() -> None:
    """A name is public if no part of its path has an underscore, or if a public module imports it from such a path."""
    (left_out,) = re.findall(r"^Left out: (?:.+\n)+", TEXT, re.MULTILINE)
    named = re.findall(r"`([\w.]+)`", left_out)
    shown = {row.name.rpartition(".")[2] for row in ROWS.values()}
    shown |= {*re.findall(r"`(\w+)`", "".join(LISTED.values()))}
    root, exported, texts = Path(torch.__file__).parent, set[str](), dict[str, str]()
    for path in root.rglob("*.py"):
        where, text = path.relative_to(root.parent).with_suffix("").parts, path.read_text(encoding="utf-8")
        module = ".".join(part for part in where if part != "__init__")
        if not re.search(r"\._|\.testing\b", module):
            imported = re.findall(r"^from \.\S*\b_\w\S* import (\([^)]*\)|.+)", text, re.MULTILINE)
            exported |= {name for names in imported for name in re.findall(r"\w+", names)}
        if "hook" in text and ".testing." not in module:
            texts[module] = text
    found = set()
    for module, text in texts.items():
        owner = kind = ""
        for indent, what, name in re.findall(r"^( {4})?(def|class) (\w+)", text, re.MULTILINE):
            if not indent:
                owner, kind = name, what
            public = not {owner[:1], name[:1]} & {"", "_"} and ("._" not in module or owner in exported)
            if public and "hook" in name.lower() and (not indent or kind == "class"):
                found.add((module, f"{owner}.{name}" if indent else name))
    modules = [each for each in named if each.startswith("torch.") and each != "torch.autograd.graph"]
    for module, name in found:
        known = {name, name.rpartition(".")[2]} & {*shown, *named}
        assert known or any(f"{module}.".startswith(f"{each}.") for each in modules), f"{module}.{name}"
    assert ("torch.autograd.graph", "disable_saved_tensors_hooks") in found
    assert any("._" in module for module, _ in found), "else a name that is only imported would not be found"


# --- the drawing


DRAWING = ElementTree.parse(PAGE.parent / "one_pass.svg").getroot()  # our own file
SVG = "{http://www.w3.org/2000/svg}"
PEGS = {
    group.get("data-hook"): [part for part in group if part.tag in (f"{SVG}circle", f"{SVG}text")]
    for group in DRAWING.iter(f"{SVG}g")
}
LABELS = {hook: parts[2].text for hook, parts in PEGS.items()}


def test_the_drawing_has_the_order_of_a_run() -> None:
    fired = records.get_current_answers()["order_of_step"].split(", ")
    assert [hook for hook in fired if not hook.endswith((".grad", "()"))] == [*PEGS]
    assert [parts[1].text for parts in PEGS.values()] == [str(number) for number in range(1, len(PEGS) + 1)]
    grads = [fired[fired.index(name) - 1] for name in ("y.grad", "weight.grad", "x.grad")]
    assert grads == ["tensor y", "tensor weight", "tensor x"], "each is filled right after its tensor's hook"


def test_forward_runs_to_the_right_and_backward_to_the_left() -> None:
    at = {hook: (float(parts[0].get("cx", "")), float(parts[0].get("cy", ""))) for hook, parts in PEGS.items()}
    forward = [at["forward_pre"], at["forward"]]
    backward = [at[hook] for hook in ("tensor y", "full_backward_pre", "full_backward", "tensor x")]
    assert forward == sorted(forward)
    assert backward == sorted(backward, reverse=True)
    assert len({y for _, y in forward}) == len({y for _, y in backward}) == 1


def test_the_drawing_is_told_in_words_twice() -> None:
    """In the text for those who cannot see it, and in the folded list."""
    (described,) = [part.text or "" for part in DRAWING if part.tag == f"{SVG}desc"]
    assert re.findall(r"\b(\d+) ([a-z][\w -]*?)(?=[,;:.]| and\b)", described) == [
        (parts[1].text, LABELS[hook]) for hook, parts in PEGS.items()
    ]
    listed = re.findall(r"^(\d+)\. (.+)$", TEXT, re.MULTILINE)
    for (number, said), (hook, parts) in zip(listed, PEGS.items(), strict=True):
        assert number == parts[1].text
        assert said.replace("`", "").startswith(str(LABELS[hook]))


def test_a_row_has_the_numbers_of_the_drawing() -> None:
    kinds = {
        "forward_pre": "module.register_forward_pre_hook",
        "forward": "module.register_forward_hook",
        "tensor": "tensor.register_hook",
        "full_backward_pre": "module.register_full_backward_pre_hook",
        "post_accumulate_grad": "tensor.register_post_accumulate_grad_hook",
        "full_backward": "module.register_full_backward_hook",
        "step_pre": "optimizer.register_step_pre_hook",
        "step_post": "optimizer.register_step_post_hook",
    }
    numbers: dict[str, list[str]] = {}
    for hook, parts in PEGS.items():
        numbers.setdefault(kinds[str(hook).partition(" ")[0]], []).append(str(parts[1].text))
    assert {row.name: row.numbers for row in ROWS.values() if row.numbers} == {
        name: ", ".join(each) for name, each in numbers.items()
    }


# --- what torch says


def twos() -> tuple[Tensor, Tensor]:
    x = torch.ones(5, requires_grad=True)
    return x, 2 * x


def run_hook(hook: Callable[[Tensor], Any], end: Callable[[Tensor], Tensor] = torch.mean) -> None:
    _, y = twos()
    y.register_hook(hook)
    end(y).backward()


def accumulate(hook: Callable[[Tensor], Any]) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(hook)
    (2 * weight).sum().backward()


def nothing(*given: object) -> None:
    pass


def forward_with(hook: Callable[..., Any]) -> None:
    relu = nn.ReLU()
    relu.register_forward_hook(hook)
    relu(X)


def backward_with(hook: Callable[..., Any], x: Tensor | None = None, inplace: bool = False) -> None:
    layer = nn.Linear(1, 1)
    layer.register_full_backward_hook(hook)
    nn.Sequential(layer, nn.ReLU(inplace=inplace))(
        torch.ones(3, 1, requires_grad=True) if x is None else x
    ).sum().backward()


def two_kinds(first: str, second: str) -> None:
    module = nn.ReLU()
    getattr(module, first)(nothing)
    getattr(module, second)(nothing)


FULL, LEGACY = "register_full_backward_hook", "register_backward_hook"
SAID: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "has changed the size of value": (
        lambda: run_hook(lambda grad: grad[:1]),
        lambda: run_hook(lambda grad: grad[:1].expand(grad.shape)),
    ),
    "has changed the type of value": (
        lambda: run_hook(lambda grad: grad.double()),
        lambda: run_hook(lambda grad: grad.double().to(grad.dtype)),
    ),
    "expected Variable": (
        lambda: run_hook(lambda grad: 2.0),
        lambda: run_hook(lambda grad: torch.full_like(grad, 2.0)),
    ),
    "more than one element of the written-to tensor": (
        lambda: run_hook(lambda grad: grad.mul_(2), torch.sum),
        lambda: run_hook(lambda grad: 2 * grad, torch.sum),
    ),
    "cannot register a hook": (
        lambda: torch.ones(5).register_hook(print),
        lambda: torch.ones(5).requires_grad_().register_hook(print),
    ),
    "can't retain_grad": (
        lambda: torch.ones(5).retain_grad(),
        lambda: torch.ones(5).requires_grad_().retain_grad(),
    ),
    "cannot be registered on non-leaf tensors": (
        lambda: twos()[1].register_post_accumulate_grad_hook(print),
        lambda: twos()[1].register_hook(print),
    ),
    "should return None": (lambda: accumulate(lambda weight: weight.grad), lambda: accumulate(nothing)),
    "'NoneType' object has no attribute 'register_hook'": (
        lambda: twos()[0].grad_fn.register_hook(nothing),
        lambda: twos()[0].register_hook(nothing),
    ),
    "positional arguments but 3 were given": (
        lambda: forward_with(lambda module, output: None),
        lambda: forward_with(lambda module, args, output: None),
    ),
    "is a view and is being modified inplace": (
        lambda: backward_with(nothing, inplace=True),
        lambda: backward_with(nothing, inplace=False),
    ),
    "invalid number of grad_input": (
        lambda: backward_with(lambda module, grad_input, grad_output: grad_input[0]),
        lambda: backward_with(lambda module, grad_input, grad_output: (grad_input[0],)),
    ),
    "both regular backward hooks and full": (
        lambda: two_kinds(LEGACY, FULL),
        lambda: two_kinds(FULL, FULL),
    ),
    "no inputs require gradients": (
        lambda: backward_with(nothing, torch.ones(3, 1)),
        lambda: backward_with(nothing, torch.ones(3, 1).requires_grad_()),
    ),
}


def test_everything_that_torch_says_is_shown() -> None:
    assert [*ERRORS] == [*SAID]


@pytest.mark.parametrize("said", SAID)
def test_what_torch_says_and_what_to_write(said: str) -> None:
    refused, works = SAID[said]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeError, TypeError, AttributeError, UserWarning), match=re.escape(said)):
            refused()
        works()


# --- the lines below


def rows_that_may_return_none() -> list[str]:
    assert "Only\n`unpack` and the communication hook must return something" in TEXT
    others = ("graph.saved_tensors_hooks", "ddp.register_comm_hook")
    return [name for name in ROWS if name not in others]


@pytest.mark.parametrize("name", rows_that_may_return_none())
def test_a_hook_that_returns_none_fires_changes_nothing_and_can_be_removed(name: str) -> None:
    row, fired = ROWS[name], []
    weight, x, module = nn.Parameter(torch.tensor(2.0)), x_that_requires(), Noting()
    y = Noting()(x)  # another one: loading its weights would spoil what y has saved for backward
    optimizer = optimizer_of(weight)
    names = {"module": module, "tensor": y, "tensors": [y], "node": y.grad_fn, "optimizer": optimizer}
    if "post_accumulate" in name:
        names["tensor"] = module.weight

    def step() -> None:
        (y + module(x)).backward(retain_graph=True)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        module.load_state_dict(module.state_dict())

    with facts.global_hooks() as handles, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        handles.append(row.put_on(lambda *given: fired.append(name), **names))
        step()
        assert [y.item(), x.grad, module.weight.grad, weight.item()] == [6, 4, 3, -1]
        assert fired
        fired.clear()
        row.take_off(handles[0])
        step()
    assert not fired


def of_every(whom: str) -> list[str]:
    """The hooks that a line lists, all of which are in the module that it names."""
    *names, place = re.findall(r"`([\w.]+)`", LISTED[whom])
    assert all(hasattr(import_module(place), name) for name in names)
    return names


def test_hooks_of_every_module_get_the_same_and_fire_first() -> None:
    """As 1, 2, 4 and 7, as the list says; the fact has the order of torch's own run."""
    names = of_every("Every module")
    own = [name.replace("register_module_", "register_") for name in names]
    numbers = {row.name.removeprefix("module."): row.numbers for row in ROWS.values()}
    assert [numbers[name] for name in own] == ["1", "2", "4", "7"]
    assert "as 1, 2, 4 and 7, and fire before" in " ".join(LISTED["Every module"].split())
    module, seen = nn.Linear(1, 1), dict[str, list[object]]()
    with facts.global_hooks() as handles:
        for name in names:
            handles.append(getattr(nn.modules.module, name)(lambda *given, name=name: seen.update({name: [*given]})))
        for name in own:
            handles.append(getattr(module, name)(lambda *given, name=name: seen.update({name: [*given]})))
        module(x_that_requires()).backward()
    assert len(seen) == 8
    for name, its_own in zip(names, own, strict=True):
        assert [*seen].index(name) < [*seen].index(its_own)
        assert seen[name] == seen[its_own], name
        assert seen[name][0] is module


def test_hooks_of_every_optimizer_get_the_same() -> None:
    names = of_every("Every optimizer")
    assert names == [f"register_optimizer_step_{when}_hook" for when in ("pre", "post")]
    assert "as 9 and 10" in LISTED["Every optimizer"]
    optimizer, seen = optimizer_of(nn.Parameter(torch.tensor(2.0))), dict[str, list[object]]()
    with facts.global_hooks() as handles:
        for name in names:
            handles.append(getattr(OPTIMIZER, name)(lambda *given, name=name: seen.update({name: [*given]})))
            own = name.replace("optimizer_", "")
            handles.append(getattr(optimizer, own)(lambda *given, own=own: seen.update({own: [*given]})))
        optimizer.step()
    assert len(seen) == 4
    for name in names:
        assert seen[name] == seen[name.replace("optimizer_", "")]


def test_modules_and_optimizers_have_hooks_for_saving_and_loading() -> None:
    names = re.findall(r"`(\w+)`", LISTED["Saving and loading"])
    assert len(names) == 4
    assert all(hasattr(kind, name) for name in names for kind in (nn.Module, torch.optim.Optimizer))


def test_a_handle_is_given_to_a_with_block() -> None:
    assert "so does the end of a `with` block" in TEXT
    module, seen = Noting(), []
    with module.register_forward_hook(lambda *given: seen.append(1)):
        module(X)
        Noting()(X)  # it is on one module
    module(X)
    assert seen == [1]
