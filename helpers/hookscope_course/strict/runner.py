"""Run notebooks from top to bottom, as nbval would, and save them with what came out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hookscope_course.kernel_settings import KERNEL_ENV, open_over_files

__all__ = ["main"]

CELL_SECONDS = 600  # for a cell, unless told otherwise


class NotRunError(Exception):
    """A notebook could not be run; the message says why."""


def main(arguments: Sequence[str]) -> int:
    """Run notebooks and save them, to be held by the plugin from now on.

    Args:
        arguments: of the command line: paths of notebooks, each of which runs in its own folder, and options.

    Returns:
        The exit status: 1 if a notebook could not be run, or a cell raised or wrote to stderr. Such a notebook is left
        as it was, and the others run.

    """
    parser = argparse.ArgumentParser(
        prog="python -m hookscope_course.strict",
        description="Run notebooks from top to bottom, and save them with their outputs.",
    )
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", type=Path)
    parser.add_argument(
        "--timeout", type=float, default=CELL_SECONDS, metavar="SECONDS", help="the limit for each cell, 600 by default"
    )
    parser.add_argument(
        "--current-env", action="store_true", help="use this Python instead of the kernel that the notebook names"
    )
    steady = ", ".join(f"{name}={value}" for name, value in KERNEL_ENV.items())
    parser.add_argument("--steady", action="store_true", help=f"start the kernel with {steady}")
    options = parser.parse_args(arguments)
    status = 0
    for path in options.notebooks:
        try:
            _run_notebook(path, options.timeout, options.current_env, KERNEL_ENV if options.steady else {})
        except NotRunError as error:
            print(f"{path} was not changed: {error}", file=sys.stderr)
            status = 1
        else:
            print(f"{path}: executed and saved")
    return status


def _run_notebook(path: Path, timeout: float, current_env: bool, environment: dict[str, str]) -> None:
    import nbformat
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = _read_notebook(path)
    client = _make_client(notebook, path, timeout, current_env)
    before = [dict(cell.metadata) for cell in notebook.cells]
    markers = [_find_markers(cell) for cell in notebook.cells]
    for cell, marked in zip(notebook.cells, markers, strict=True):
        asked = {"skip-execution": marked.get("skip"), "raises-exception": marked.get("check_exception")}
        tags = [tag for tag, wanted in asked.items() if wanted]
        if tags:
            cell.metadata = nbformat.from_dict({**cell.metadata, "tags": [*cell.metadata.get("tags", []), *tags]})
        if marked.get("skip"):
            cell.execution_count = None
    try:
        client.execute(env=os.environ | environment)
    except NoSuchKernel as error:
        raise NotRunError(
            f"it needs the kernel {error.name!r}, which is not installed here. Add --current-env to use this Python"
        ) from None
    except CellTimeoutError:
        raise NotRunError(
            f"a cell took longer than {timeout:g} seconds. Allow more time, as in --timeout {10 * timeout:g}"
        ) from None
    except (OSError, ValueError, RuntimeError, CellExecutionError, DeadKernelError) as error:
        raise NotRunError(str(error)) from None
    for number, (cell, metadata, marked) in enumerate(zip(notebook.cells, before, markers, strict=True)):
        cell.metadata = nbformat.from_dict(metadata)
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr" and marked.get("check", True) and not marked.get("skip"):
                code = sum(one.cell_type == "code" for one in notebook.cells[:number])
                raise NotRunError(
                    f"code cell {code}, {_get_first_line(cell.source)!r}, wrote to stderr:\n{output['text']}"
                )
    nbformat.write(notebook, path)


def _read_notebook(path: Path) -> Any:
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
        kind = raw.get("nbformat") if isinstance(raw, dict) else None
        if kind is None:
            raise NotRunError("it is not a notebook, because it has no nbformat")
        if kind != 4:
            raise NotRunError(
                f"it has nbformat {kind}, but only 4 is supported. Use jupyter nbconvert --to notebook --inplace"
            )
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except OSError as error:
        raise NotRunError(f"it cannot be read: {error.strerror}") from None
    except (ValueError, nbformat.ValidationError) as error:  # of JSON and UTF-8, too
        raise NotRunError(f"it is not a valid notebook: {str(error).strip().splitlines()[0]}") from None
    return notebook


def _make_client(notebook: Any, path: Path, timeout: float, current_env: bool) -> Any:
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

    class Manager(AsyncKernelManager):
        def __init__(self, **more: Any) -> None:
            super().__init__(kernel_spec_manager=NbvalKernelspecManager(), **more)

    where = {"metadata": {"path": str(path.resolve().parent)}}
    named = {"kernel_name": CURRENT_ENV_KERNEL_NAME} if current_env else {}
    client = NotebookClient(
        notebook, timeout=timeout, resources=where, config=open_over_files(), record_timing=False, **named
    )
    client.kernel_manager_class = Manager
    return client


def _find_markers(cell: Any) -> dict[str, bool]:
    """Say what nbval's comments and tags ask of a cell."""
    from nbval.plugin import find_comment_markers, find_metadata_tags

    if cell.cell_type != "code":
        return {}
    return {**dict(find_metadata_tags(cell.metadata)), **dict(find_comment_markers(cell.source))}


def _get_first_line(source: str) -> str:
    return next((line.strip() for line in source.splitlines() if line.strip()), "")[:80]
