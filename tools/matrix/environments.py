"""Install one release of torch, and what the project needs beside it, into an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
WEIGHTS = "requirements-weights.lock"
LIBRARY_FROM, COURSE_FROM = (2, 6), (2, 8)  # what docs/compatibility.md promises
NEWEST = "2.15"
# Each minor release on one Python; the lowest and the newest also on the other Pythons.
PAIRS = (
    *((f"2.{minor}", "3.11") for minor in range(LIBRARY_FROM[1], 16)),
    *((torch, python) for python in ("3.12", "3.13") for torch in ("2.6", "2.8", NEWEST)),
)


class InstallFailedError(Exception):
    """An environment that could not be made; the message is what the installer said last."""


def minor(release: str) -> tuple[int, ...]:
    """What orders releases: (2, 8) for "2.8.0" and for "2.8".

    Example:
        >>> minor("2.10.0+cpu") > minor("2.9")
        True

    """
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


def install(torch: str, python: str, folder: Path) -> Path:
    """Make an environment with a torch of this minor release, and return its interpreter.

    Everything else is what requirements*.lock pin; where a pin does not go with that torch or that Python, the newest
    that does.

    Args:
        torch: such as "2.8", of which the latest patch is taken, or "2.8.0".
        python: such as "3.12"; one that is on this machine, or that uv may fetch.
        folder: where to; what uv downloads stays there, too.

    Raises:
        NotInstalledError: there is no such Python or release, or it does not install.

    """
    home = folder / "env"
    interpreter = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    folder.mkdir(parents=True, exist_ok=True)
    uv(folder, "venv", "--allow-existing", "--python", python, home)
    wanted = torch if torch.count(".") > 1 else f"{torch}.*"
    (folder / "pair.in").write_text(f"torch=={wanted}\ntorchvision\n", encoding="utf-8")
    pair = _resolved(folder, python, "pair", folder / "pair.in")
    fixed = [line for line in pair.splitlines() if re.match(r"torch(vision)?==", line)]
    (folder / "fixed.txt").write_text("\n".join(fixed), encoding="utf-8")
    # What stands in the output file is kept where it can be: the pins of the newest torch are preferences here.
    pins = "".join((ROOT / lock).read_text(encoding="utf-8") for lock in LOCKS)
    kept = "\n".join(line for line in pins.splitlines() if not re.match(r"(torch|torchvision|triton)==", line))
    (folder / "all.txt").write_text(kept, encoding="utf-8")
    sources: list[str | Path] = ["--extra", "course", "--group", "dev", "--override", folder / "fixed.txt"]
    _resolved(folder, python, "all", ROOT / "pyproject.toml", *sources)
    uv(folder, "pip", "install", "--python", interpreter, "-r", folder / "all.txt")
    uv(folder, "pip", "install", "--python", interpreter, "--no-deps", "-r", ROOT / WEIGHTS)
    uv(folder, "pip", "install", "--python", interpreter, "--no-deps", "-e", ROOT)
    return interpreter


def _resolved(folder: Path, python: str, name: str, *sources: str | Path) -> str:
    """Let uv choose the releases, beginning with those that its output file has, and return what it wrote."""
    out = folder / f"{name}.txt"
    options = ("--python-version", python, "--no-header", "--no-annotate", "--quiet", "-o", out)
    uv(folder, "pip", "compile", *sources, *options)
    return out.read_text(encoding="utf-8")


def uv(folder: Path, *words: str | Path) -> None:
    """Run uv, which the project's own environment has.

    Raises:
        NotInstalledError: it failed; holds the end of what it said.

    """
    command = [str(ROOT / ".venv" / "bin" / "uv"), *map(str, words)]
    settings = {**os.environ, "UV_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(command, env=settings, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallFailedError(" ".join(done.stderr.split())[-600:])
