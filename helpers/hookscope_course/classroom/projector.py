"""Open a chapter for a class: JupyterLab with one document, large type and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

from hookscope_course.classroom.slide_order import order_slides
from hookscope_course.lab import become_lab
from hookscope_course.learner.copies import find_chapter
from hookscope_course.learner.learner_edition import encode_notebook

__all__ = ["open_chapter", "write_edition"]

SETTINGS = {
    "jupyterlab-slideshow:plugin": {"active": True},
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "none",  # else a slide that was not on the screen yet is drawn empty
        "codeCellConfig": {"lineWrap": True, "lineNumbers": False},
        "markdownCellConfig": {"lineWrap": True},
    },
    # Readable from the last row of a room, at 1280 × 720.
    "@jupyterlab/apputils-extension:themes": {
        "theme": "JupyterLab Light",
        "overrides": {"content-font-size1": "25px", "code-font-size": "22px"},
    },
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
}
"""JupyterLab's settings for a class; a teacher's own stay as they are."""
KEYS = Path(__file__).with_name("labextension")
"""The extension of JupyterLab with the keys, the number of the slide, and the size of what cells put out."""


def write_edition(chapter: str, folder: Path) -> Path:
    """Write a chapter's edition for the projector; an earlier one is replaced.

    Args:
        chapter: its number, e.g. "02".
        folder: where to.

    Raises:
        CopyError: there is no such chapter; says which there are.

    """
    built = find_chapter(chapter)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / built.name
    target.write_bytes(encode_notebook(order_slides(json.loads(built.read_text(encoding="utf-8")))))
    return target


def write_settings(folder: Path) -> Path:
    """Write the settings where JupyterLab looks for a user's, and return that folder."""
    for plugin, values in SETTINGS.items():
        package, _, name = plugin.partition(":")
        package_folder = folder / package
        package_folder.mkdir(parents=True, exist_ok=True)
        (package_folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values, indent=1))
    return folder


def open_chapter(chapter: str, folder: Path, *options: str) -> NoReturn:
    """Become a JupyterLab that shows this chapter to a class, on this machine alone.

    Args:
        chapter: its number.
        folder: for the chapter and JupyterLab's settings.
        options: more for JupyterLab.

    """
    target = write_edition(chapter, folder)
    settings_folder = write_settings(folder / ".settings")
    become_lab(
        folder,
        f"/doc/tree/{target.name}",
        f"--LabApp.user_settings_dir={settings_folder}",
        f"--LabApp.workspaces_dir={folder / '.workspaces'}",
        f"--LabApp.extra_labextensions_path={KEYS}",
        *options,
    )
