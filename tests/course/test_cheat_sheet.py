"""Everything on the cheat sheet: each row registers by its own code, its hook takes its arguments, it does as said."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nbconvert import HTMLExporter
from torch import Tensor, distributed, nn

from hookscope import record
from lessons.build import making
from tests.course.cheat_sheet import (  # elsewhere and passes add their demonstrations
    PAGE,
    REFUSED,
    ROWS,
    SHOWN,
    TEXT,
    WORDS,
    Noting,
    X,
    elsewhere,  # noqa: F401
    optimizer_of,
    passes,  # noqa: F401
    x_that_requires,
)
from tests.shared import ROOT
from tests.shared.patience import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("hook", ROWS)
def test_a_row_does_what_it_says(hook: str) -> None:
    row = ROWS[hook]
    assert (row.fires, row.returns, row.trap) == WORDS[hook], "say in the demonstration what the sheet says now"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SHOWN[hook](row)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; on Debian: apt-get install chromium")
def test_it_is_printed_on_one_page(tmp_path: Path) -> None:
    notebook = making.parse(PAGE).notebook
    html, _ = HTMLExporter(template_name="lab").from_notebook_node(notebook)  # what JupyterLab prints
    (tmp_path / "sheet.html").write_text(re.sub(r"<script[^>]*></script>", "", html), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-pdf-header-footer",
        f"--user-data-dir={tmp_path}/home",
    ]
    command = [str(CHROMIUM), *flags, f"--print-to-pdf={tmp_path}/sheet.pdf", f"{(tmp_path / 'sheet.html').as_uri()}"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    pdf = (tmp_path / "sheet.pdf").read_bytes()
    assert re.findall(rb"/Type /Pages\s*/Count (\d+)", pdf) == [b"1"]
    (width, height) = map(float, re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)[0])
    assert (round(width), round(height)) == (842, 595), "A4, landscape, in points"


def test_every_row_is_shown() -> None:
    assert set(ROWS) == set(SHOWN)
    assert len(ROWS) == 15, "the page says how many kinds there are"
    assert "fifteen kinds" in (ROOT / "lessons" / "93_cheat_sheet" / "lesson.md").read_text().replace("\n", " ")
    assert len(ROWS) + len(REFUSED) == TEXT.count("\n| ") - 4, "a line of a table is not read here"


def twos() -> tuple[Tensor, Tensor]:
    x = torch.ones(5, requires_grad=True)
    return x, 2 * x


def run_hook(hook: Callable[[Tensor], Any], end: Callable[[Tensor], Tensor] = torch.mean) -> Tensor:
    x, y = twos()
    y.register_hook(hook)
    end(y).backward()
    assert x.grad is not None
    return x.grad


def accumulate(hook: Callable[[Tensor], Any]) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(hook)
    (2 * weight).sum().backward()


def nothing(weight: Tensor) -> None:
    pass


REFUSALS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "a tensor hook that returns another shape": (
        lambda: run_hook(lambda grad: grad[:1]),
        lambda: run_hook(lambda grad: grad[:1].expand(grad.shape)),
    ),
    "a tensor hook that returns another dtype": (
        lambda: run_hook(lambda grad: grad.double()),
        lambda: run_hook(lambda grad: grad.double().to(grad.dtype)),
    ),
    "a tensor hook that returns a number": (
        lambda: run_hook(lambda grad: 2.0),
        lambda: run_hook(lambda grad: torch.full_like(grad, 2.0)),
    ),
    "`grad.mul_(2)` after `sum`": (
        lambda: run_hook(lambda grad: grad.mul_(2), torch.sum),
        lambda: run_hook(lambda grad: 2 * grad, torch.sum),
    ),
    "`register_hook` on a tensor without `requires_grad`": (
        lambda: torch.ones(5).register_hook(print),
        lambda: torch.ones(5).requires_grad_().register_hook(print),
    ),
    "`retain_grad` on a tensor without `requires_grad`": (
        lambda: torch.ones(5).retain_grad(),
        lambda: torch.ones(5).requires_grad_().retain_grad(),
    ),
    "a post-accumulate hook on a tensor that is not a leaf": (
        lambda: twos()[1].register_post_accumulate_grad_hook(print),
        lambda: twos()[1].register_hook(print),
    ),
    "a post-accumulate hook that returns something": (
        lambda: accumulate(lambda weight: weight.grad),
        lambda: accumulate(nothing),
    ),
}


def test_every_refusal_is_shown() -> None:
    assert list(REFUSED) == list(REFUSALS)


@pytest.mark.parametrize("what", REFUSALS)
def test_what_torch_refuses(what: str) -> None:
    said, _ = REFUSED[what]
    refused, works = REFUSALS[what]
    with pytest.raises((RuntimeError, TypeError), match=re.escape(said)):
        refused()
    works()


def test_the_order_of_one_pass() -> None:
    said = TEXT.split("**One Linear layer, one pass, when its input requires grad:**")[1].split("**What torch")[0]
    steps = {
        "forward pre-hook": "forward_pre (root)",
        "forward hook": "forward (root)",
        "tensor hook of the output": "tensor y",
        "`retain_grad` fills its `.grad`": "retain_grad y",
        "full backward pre-hook": "full_backward_pre (root)",
        "tensor hook of the weight": "tensor weight",
        "post-accumulate hook": "post_accumulate_grad weight",
        "full backward hook": "full_backward (root)",
    }
    module, x = Noting(), x_that_requires()
    with record(module, parameters=True) as recording:
        recording.watch(module(x), "y", retain_grad=True).backward()
    parts = re.split(r" → |: ", " ".join(said.split()).rstrip("."))
    assert [steps[part] for part in parts if part in steps] == recording.order()
    assert [part for part in parts if part not in steps] == ["`forward`", "`backward()`", "its `.grad`"]


def test_none_changes_nothing() -> None:
    assert "All but `pack`, `unpack` and the communication hook may return None" in TEXT
    for row in ROWS.values():
        if row.hook in ("saved-tensors hooks", "communication hook"):
            continue
        weight, x, module = nn.Parameter(torch.tensor(2.0)), x_that_requires(), Noting()
        y = module(x)
        names = {"module": module, "tensor": y, "tensors": [y], "parameter": module.weight}
        optimizer = optimizer_of(weight)
        with row.put_on(lambda *given: None, optimizer=optimizer, **names):
            (y + module(x)).backward()
            optimizer.step()
            assert [*module.state_dict()] == ["weight"]
        assert [y.item(), x.grad, module.weight.grad, weight.item()] == [6, 4, 6, -1], row.hook


def test_a_handle_is_given_to_a_with_block() -> None:
    assert "so does the end of a `with` block" in TEXT
    module, seen = Noting(), []
    with module.register_forward_hook(lambda *given: seen.append(1)):
        module(X)
    module(X)
    assert seen == [1]
