"""Chapter 15's `pretrained = True`, held against a hub on this machine: the real client, real HTTP, a small model."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lessons.build import reading
from tests.shared.language import gpt2
from tests.shared.patience import PATIENCE

REPOSITORY = "/distilbert/distilgpt2/resolve/main/"


class Hub(BaseHTTPRequestHandler):
    """The part of the Hugging Face hub that `from_pretrained` asks: a file's head, then the file."""

    def __init__(self, folder: Path, *args: object) -> None:
        self.folder = folder
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, whole: bool) -> None:
        file = self.folder / self.path.removeprefix(REPOSITORY)
        if not self.path.startswith(REPOSITORY) or not file.is_file():
            self.send_response(404)
            there = (self.folder / "config.json").is_file()
            self.send_header("X-Error-Code", "EntryNotFound" if there else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    gpt2(n_layer=3).save_pretrained(tmp_path / "model")  # type: ignore[operator]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tmp_path / "model"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def cell_that_loads() -> str:
    """The cell of chapter 15 that loads a model of the transformers library, asked for trained weights."""
    chapter = next(path for path in reading.chapter_files() if path.parent.name.startswith("15_")).read_text("utf-8")
    cells = [text.partition("```")[0] for text in chapter.split("```{code-cell}\n")[1:]]
    (cell,) = [text for text in cells if "pretrained = False" in text]
    return cell.replace("pretrained = False", "pretrained = True")


@pytest.mark.parametrize("there", [True, False], ids=["there", "not there"])
def test_chapter_15_takes_trained_weights_where_they_can_be_had(hub: str, tmp_path: Path, there: bool) -> None:
    if not there:
        (tmp_path / "model" / "config.json").unlink()
    script = (
        "import torch\nfrom transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, logging\n"
        + cell_that_loads()
        + "\nprint(len(gpt.transformer.h), gpt.training, float(gpt.transformer.wte.weight.detach().sum()))"
    )
    settings = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    settings.pop("HF_HUB_OFFLINE", None)
    settings.pop("TRANSFORMERS_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", script], env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    if there:
        served = float(gpt2(n_layer=3).transformer.wte.weight.detach().sum())  # type: ignore[union-attr, operator, arg-type]
        layers, training, total = done.stdout.split()
        assert (layers, training) == ("3", "False")
        assert float(total) == pytest.approx(served)
    else:
        said = done.stdout.splitlines()
        assert said[:2] == ["no trained weights: OSError", "random weights, nothing learned"]
        assert said[2].startswith("2 False")
