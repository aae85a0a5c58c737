"""Start JupyterLab for the course, on this machine only and with its own settings; HOME may be read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hookscope_course.learner.copies import STATE_FOLDER, CopyError
from hookscope_course.missing_names import write_startup
from hookscope_course.paths import SETTINGS, describe_install

__all__ = ["become_lab", "check_lab"]


def check_lab(options: Sequence[str]) -> None:
    """Refuse early what would start the wrong JupyterLab or none.

    Args:
        options: for JupyterLab.

    Raises:
        ModuleNotFoundError: there is no JupyterLab here; says how to get it.
        CopyError: it has no such option; suggests one.

    """
    if find_spec("jupyterlab") is None:
        raise ModuleNotFoundError(f"JupyterLab is not installed. {describe_install()}.", name="jupyterlab")
    names = [option[2:].partition("=")[0] for option in options if option.startswith("--") and "." not in option]
    if names:
        from jupyterlab.labapp import LabApp  # takes a second

        known = {*LabApp.aliases, *LabApp.flags}
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean --{near[0]}?" if near else ". `jupyter lab --help` lists them"
                raise CopyError(f"JupyterLab has no option --{name}{hint}")


def become_lab(folder: Path, page: str, *options: str) -> NoReturn:
    """Replace this process by a JupyterLab.

    Args:
        folder: what it shows.
        page: where it opens, as a part of its address: "/lab/tree/index.ipynb".
        options: more for JupyterLab.

    """
    command = [
        # -P: not with modules from the folder in which somebody happens to be, which may be called like Jupyter's own.
        sys.executable, "-P", "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url={page}", *_allow_root(), *options,
    ]  # fmt: skip
    os.environ.update(_make_environment(folder))
    sys.stdout.flush()
    if os.name == "nt":  # there execv starts another process, and the terminal takes this one's end for its end
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


def _allow_root() -> list[str]:
    """In a container people are root, and Jupyter wants to be told that this is meant."""
    return ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def _make_environment(folder: Path) -> dict[str, str]:
    """The course's settings; and a place for what programs keep in HOME, where that cannot be written."""
    paths = [str(SETTINGS), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    found = {"JUPYTER_CONFIG_PATH": os.pathsep.join(paths)}
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and nobody of this name
        home = Path(os.devnull)
    if not (home.is_dir() and os.access(home, os.W_OK)):
        home = folder / STATE_FOLDER / "home"
        home.mkdir(parents=True, exist_ok=True)
        found["HOME"] = str(home)
    if (folder / STATE_FOLDER).is_dir():  # a learner's copy: its kernels say what to do after a restart
        found["IPYTHONDIR"] = str(write_startup(folder / STATE_FOLDER / "ipython"))
    return found
