"""Each row of the chooser does what it says, and does it because of its hook."""

from __future__ import annotations

import ast
import contextlib
import io
import pkgutil
import tomllib
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import traitlets
from torch import distributed, nn
from torch.nn.utils import prune
from torch.optim import Optimizer

from hookscope import census
from hookscope_course.figures.chooser.figure import GROUPS, Chooser
from hookscope_course.history import records
from lessons.build import chooser_history, lesson_source
from tests.shared import ROOT
from tests.shared.table_checks import for_each
from tools import history as make

ROWS = lesson_source.rows_of("chooser.toml", "want")


each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["want"])


class Nothing:
    """What a registering call returns that registers nothing: a handle, or a with-block."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def remove(self) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Change(ast.NodeTransformer):
    """Change the one call that registers a hook."""

    def __init__(self, hook: str, change: Callable[[ast.Call], object]) -> None:
        self.name, self.change, self.calls = hook.rpartition(".")[2], change, 0

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == self.name:
            self.calls += 1
            self.change(node)
        return node


def run(tree: ast.AST) -> tuple[str, dict[str, object]]:
    """Run a snippet in a namespace of its own; return what it printed, with the error it ended in, and its names."""
    names: dict[str, object] = {"Nothing": Nothing}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(ast.fix_missing_locations(tree), "<snippet>", "exec"), names)
    except Exception as error:  # a snippet that misses its hook may fail in any way
        print(f"{type(error).__name__}: {error}", file=said)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return said.getvalue().strip(), names


def changed(row: dict, hook: str, change: Callable[[ast.Call], object]) -> str:
    """What the snippet prints when the call that registers this hook is changed."""
    tree = ast.parse(row["snippet"])
    changer = Change(hook, change)
    changer.visit(tree)
    assert changer.calls == 1, f"the snippet calls {changer.name} {changer.calls} times"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(tree)[0]


def test_the_wants_are_all_different() -> None:
    assert len({row["want"] for row in ROWS}) == len(ROWS) >= 40


@pytest.mark.parametrize(
    "words",
    [
        "get embeddings", "freeze", "intermediate output", "attention map", "gradient is None", "retain_grad",
        "per-sample gradients", "Grad-CAM ViT", "double backward", "torch.compile", "deepcopy", "steering", "LoRA",
        "nan",
    ],
)  # fmt: skip
def test_a_row_is_found_by_the_words_that_people_type(words: str) -> None:
    assert [row["want"] for row in ROWS if words in f"{row['want']}, {row['also']}"]


@each_row
def test_a_snippet_prints_what_its_row_says_and_leaves_no_hook(row: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said, names = run(ast.parse(row["snippet"]))
    assert said == row["prints"]
    things = [value for value in names.values() if isinstance(value, nn.Module | Optimizer | torch.Tensor)]
    assert len(census(*things)) == 0


def test_the_page_names_the_option_of_a_hook() -> None:
    assert [(row["want"], option) for row, _, option in options()] == [
        (row["want"], row["option"]) for row in ROWS if "option" in row
    ]


@each_row
def test_without_its_hook_a_snippet_prints_something_else(row: dict) -> None:
    def register_nothing(call: ast.Call) -> None:
        call.func = ast.Name("Nothing", ast.Load())

    for hook in row["hooks"]:
        assert pkgutil.resolve_name(hook), "torch has it under this name"
        assert changed(row, hook, register_nothing) != row["prints"], f"it needs no {hook}"


def options() -> Iterator[tuple[dict, str, str]]:
    """Every option that a snippet gives to a registering call: row, hook, keyword."""
    for row in ROWS:
        for hook in row["hooks"]:
            if hook.startswith("hookscope."):  # whose options are no options of a hook
                continue
            given: list[str] = []
            Change(hook, lambda call, given=given: given.extend(str(word.arg) for word in call.keywords)).visit(
                ast.parse(row["snippet"])
            )
            yield from ((row, hook, option) for option in given)


@pytest.mark.parametrize(("row", "hook", "option"), [*options()], ids=lambda value: value if type(value) is str else "")
def test_without_an_option_of_its_hook_a_snippet_prints_something_else(row: dict, hook: str, option: str) -> None:
    def drop(call: ast.Call) -> None:
        call.keywords = [word for word in call.keywords if word.arg != option]

    assert changed(row, hook, drop) != row["prints"]


@for_each(ROWS)
def test_a_snippet_is_short_and_stands_alone(row: dict) -> None:
    lines = [line for line in row["snippet"].splitlines() if line]
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 90
    assert lines[0] == "import torch"
    ours = any(hook.startswith("hookscope.") for hook in row["hooks"])
    assert ("hookscope" in row["snippet"]) == ours, "torch and nothing else, where a hook of torch's does it"


# --- the lines to paste


class FirstToken(nn.Module):
    """As the head of a vision transformer."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, 0]


def names_of_a_reader(row: dict) -> dict[str, object]:
    """What the lines may use: a model, a layer of it, an input, and whatever else a reader has who wants this."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(3, 4, requires_grad=True)
    if row["want"] == "See attention maps":
        model, x = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), torch.randn(1, 3, 4)
        return {"torch": torch, "model": model, "x": x}
    if "vision transformer" in row["want"]:
        model, x = model.append(FirstToken()), torch.randn(1, 1 + 14 * 14, 4)
    if row["want"] == "Make a Grad-CAM of a frozen network":
        x = torch.randn(3, 1, 8, 8)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)).requires_grad_(False)
    if "pruned" in row["want"]:
        prune.l1_unstructured(model[0], "weight", 1)
    names = {"torch": torch, "model": model, "layer": model[0], "x": x, "loader": [x.detach(), x.detach()]}
    names |= {"hook": lambda *call: None, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    if "handle.remove" in row["lines"]:
        names["handle"] = model[0].register_forward_hook(lambda *call: None)
    if "compiled(" in row["lines"]:
        names["compiled"] = torch.compile(model, backend="eager")
    if "ddp_model" in row["lines"]:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        names["ddp_model"] = nn.parallel.DistributedDataParallel(model)
    return names


@each_row
def test_the_lines_run_on_a_model_of_ones_own(row: dict, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            torch._dynamo.config.patch(skip_nnmodule_hook_guards=True),
        ):
            warnings.simplefilter("ignore")
            exec(row["lines"], names_of_a_reader(row))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@for_each(ROWS)
def test_the_lines_are_few_and_call_what_the_row_names(row: dict) -> None:
    lines = row["lines"].strip().splitlines()
    assert len(lines) <= 9
    assert max(map(len, lines)) <= 92
    if not row["want"].startswith("Copy or save"):  # there the lines remove a hook
        assert any(hook.rpartition(".")[2] in row["lines"] for hook in row["hooks"])
    assert row["answer"].endswith(".")
    assert 1 <= row["answer"].count(". ") + 1 <= 2
    assert len(row["answer"]) <= 120


def test_rows_stand_group_by_group() -> None:
    groups = [row["group"] for row in ROWS]
    assert groups == sorted(groups, key=[*GROUPS].index)
    assert {*groups} == {*GROUPS}


def test_the_widget_has_every_row() -> None:
    chooser = Chooser("nan")
    assert [row["want"] for row in chooser._rows] == [row["want"] for row in ROWS]
    assert chooser.numbers()[0]["lines"] == ROWS[0]["lines"].strip()
    with pytest.raises(traitlets.TraitError):
        chooser.group = "nothing"


# --- since when: each row was run on the releases (lessons/build/chooser_history.py)


def since_in_words(row: dict) -> str:
    """The release that a row names, without what it says beside it."""
    return str(row["since"]).partition(" (")[0]


def named(release: str) -> str:
    """As a row names a release; of some lines only a later patch release has wheels.

    Examples: 1.0.0 is "1.0 or earlier", 1.13.1 is "1.13", 2.0.1 is "2.0.1".
    """
    if release == "1.0.0":
        return "1.0 or earlier"
    major, minor, patch = release.split(".")
    alone = f"{major}.{minor}.0" not in make.RELEASES
    return f"{major}.{minor}" if patch == "0" or alone else release


@pytest.mark.parametrize("row", chooser_history.list_rows(), ids=lambda row: row["want"])
def test_a_row_says_since_when_it_was_right_on_the_releases_tried(row: dict) -> None:
    record = chooser_history.read_records()[row["want"]]
    assert record["ran"] == chooser_history.hash_row(row), (
        "run `python -m lessons.build.chooser_history`: the record is of another snippet"
    )
    first = chooser_history.find_first_right(record["on"])
    assert [*record["on"]] == sorted(make.RELEASES, key=records.parse_release)
    assert since_in_words(row) == named(first), record["on"]


@pytest.mark.parametrize("row", chooser_history.list_rows(), ids=lambda row: row["want"])
def test_no_row_was_right_before_torch_had_its_hook(row: dict) -> None:
    first = chooser_history.find_first_right(chooser_history.read_records()[row["want"]]["on"])
    lists = [name for name in records.FACTS if name.startswith("hooks_of_")]
    for hook in row["hooks"]:
        having = [release for name in lists for release in records.releases_where(name, hook.rpartition(".")[2])]
        assert records.parse_release(first) >= min(map(records.parse_release, having), default=())


def test_a_row_with_hookscope_says_from_which_torch_on_hookscope_works() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    floor = next(each for each in needs if each.startswith("torch>=")).removeprefix("torch>=")
    ours = [row for row in ROWS if "hookscope" in row["snippet"]]
    assert ours
    assert {row["want"]: row["since"] for row in ours} == {row["want"]: floor for row in ours}
