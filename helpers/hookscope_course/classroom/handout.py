"""Pack what learners get of some chapters: the learner's edition, never a solution."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from hookscope.error_pages import SITE
from hookscope_course.learner.copies import CopyError, find_chapter, make_edition
from hookscope_course.paths import IS_INSTALLED

__all__ = ["write_handout"]

_FIRST = "README.md"


def write_handout(numbers: Iterable[str], to: Path) -> list[Path]:
    """Write the learner's edition of chapters into a new folder, or into a zip if `to` ends in .zip.

    Args:
        numbers: of the chapters, e.g. "02", "04".
        to: must not be there yet: what learners may have changed is never overwritten.

    Returns:
        The notebooks in it; a README.md beside them says how to open them.

    Raises:
        CopyError: there is no such chapter (says which there are), `to` has another ending, or it is already there.

    """
    pages = {path.name: make_edition(path) for path in map(find_chapter, numbers)}
    chapters = [*pages]
    if not pages:
        way = "hookscope handout 02 04 --to FILE.zip" if IS_INSTALLED else "make handout CHAPTERS='02 04' DEST=FILE.zip"
        raise CopyError(f"name the chapters, as in: {way}")
    if to.suffix not in ("", ".zip"):
        raise CopyError(f"{to.name} must end in .zip, or be a new folder. Type --to {to.stem}.zip")
    if to.exists():
        raise CopyError(f"{to} already exists. Choose another name, or remove it")
    pages[_FIRST] = _write_first_page(pages).encode()
    to.parent.mkdir(parents=True, exist_ok=True)
    # All or nothing: a disk that fills up leaves no half of it.
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        if to.suffix == ".zip":
            packed = Path(scratch) / "packed.zip"
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
                for name, page in pages.items():
                    file.writestr(zipfile.ZipInfo(f"{to.stem}/{name}", (2026, 1, 1, 0, 0, 0)), page)
            shutil.move(packed, to)
        else:
            folder = Path(scratch) / "packed"
            folder.mkdir()
            for name, page in pages.items():
                (folder / name).write_bytes(page)
            folder.chmod(0o755)
            shutil.move(folder, to)
    return [to / name for name in chapters]


def _write_first_page(pages: dict[str, bytes]) -> str:
    """Say what this folder is and how to open it, to somebody who has nothing else of the course."""
    first = {name: "".join(json.loads(page)["cells"][0]["source"]).splitlines()[0] for name, page in pages.items()}
    listed = "\n".join(f"- `{name}`: {title.removeprefix('# ')}" for name, title in first.items())
    return f"""# PyTorch hooks: your notebooks

{listed}

1. Install the course once: {SITE}/install.html
2. Start JupyterLab with the Python of that installation, in this folder: `python -m jupyter lab`. On a class server,
   upload this folder instead.
3. Open the first notebook and go from top to bottom with Shift+Enter. Each question waits for your guess, and each
   exercise tells you whether your answer is right. You may try as often as you like.
"""
