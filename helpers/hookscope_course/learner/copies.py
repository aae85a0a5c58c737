"""The folder of a learner's copy: chapters that are untouched follow the course, those that were changed stay."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hookscope_course.learner.learner_edition import encode_notebook, make_learner_edition
from hookscope_course.paths import NOTEBOOKS

STATE_FOLDER = ".hookscope"
"""The folder inside a copy for what is known about it; it also tells a copy from any other folder."""
EARLIER_FOLDER = "earlier"
"""The folder inside a copy for chapters that were begun again."""
MOVED = {"10_versions.ipynb": "94_time_machine.ipynb"}
"""Chapters that the course has no longer under this name, and the page in their place."""
PATIENCE = 60  # seconds to wait for another process that is at work in the same copy


class CopyError(Exception):
    """A copy could not be made or changed; the message says what happened and what to do. Nothing was lost."""


class Copy:
    """A learner's copy of the course.

    Args:
        folder: where it is, or will be.
        source: the folder of the built notebooks.

    Example:
        >>> from tempfile import mkdtemp
        >>> copy = Copy(Path(mkdtemp()) / "course")
        >>> copy.update()[0]  # doctest: +ELLIPSIS
        'Your copy of the course is ready: ... notebooks.'

    """

    def __init__(self, folder: Path, source: Path = NOTEBOOKS) -> None:
        self.folder, self.source, self.state_folder = folder, source, folder / STATE_FOLDER

    def update(self) -> list[str]:
        """Lay down what is missing, renew what the learner has not touched, lay new versions beside what was changed.

        Returns:
            What there is to say, a line each; nothing when nothing was to do.

        Raises:
            CopyError: no room, no right to write, another process that does not end; nothing is lost.

        """
        with self._lock():
            known = self._read()
            editions = {path.name: make_edition(path) for path in list_chapters(self.source)}
            if not editions:
                raise CopyError(f"there are no notebooks in {self.source}. Run: make build")
            # Known before they are laid down: a copy that is killed in between takes none of them for the learner's.
            for name, edition in editions.items():
                hashes = known["laid"].setdefault(name, [])
                if hash_content(edition) not in hashes:
                    hashes.append(hash_content(edition))
            self._write(known)
            said = [line for name, edition in editions.items() for line in self._follow(name, edition, known)]
            gone = [name for name in MOVED if name in known["latest"] and name not in editions]
            said += [line for name in gone for line in self._remove_moved(name, known["laid"].get(name, []))]
            if known["latest"] == {}:
                said.insert(0, f"Your copy of the course is ready: {len(editions)} notebooks.")
            known["latest"] = {name: hash_content(edition) for name, edition in editions.items()}
            self._write(known)
            return said

    def _follow(self, name: str, edition: bytes, known: dict[str, Any]) -> Iterator[str]:
        """Bring one chapter up to date."""
        path, laid, before = self.folder / name, known["laid"][name], known["latest"].get(name)
        self._put_back(path, laid)
        if _is_strange(path):
            yield f"{name} is a link or not a file, so it was not changed. Move it away to get the chapter again."
        elif not path.exists():
            self._lay_down(path, edition)
            if before:
                yield f"{name} was missing, and has been restored."
            elif known["latest"]:
                yield f"{name} is new."
        elif hash_content(path.read_bytes()) in laid:
            if hash_content(path.read_bytes()) != hash_content(edition) and self._replace_untouched(
                path, edition, laid
            ):
                yield f"{name} has been updated."
        elif before != hash_content(edition):
            free = (path for path in self._list_new_paths(name) if not _is_strange(path))
            beside = next(path for path in free if not path.exists() or _is_one_of(path, laid))
            if not _is_one_of(beside, [hash_content(edition)]):
                beside.unlink(missing_ok=True)
                self._lay_down(beside, edition)
            yield f"{name} has your work in it, so it was not changed; the new version is {beside.name}."

    def _remove_moved(self, name: str, laid: list[str]) -> Iterator[str]:
        """Take away an untouched chapter that has moved; one with work in it stays, and so does what was done in it."""
        path = self.folder / name
        for file in ("progress.json", "guesses.json"):
            with suppress(OSError, ValueError, AttributeError):  # its number belongs to another chapter now
                done = json.loads((self.state_folder / file).read_text(encoding="utf-8"))
                number, old = name[:2], name.removesuffix(".ipynb")
                kept = {key.replace(number, old, 1) if key.startswith(f"{number}.") else key: done[key] for key in done}
                replace_text(self.state_folder / file, json.dumps(kept, indent=1, sort_keys=True))
        if _is_one_of(path, laid):
            path.unlink()
            yield f"{name} is now {MOVED[name]}; it had none of your work in it."
        elif path.exists():
            yield f"{name} has your work in it, so it was not changed; in the course, {MOVED[name]} replaces it."

    def reset(self, chapter: str) -> str:
        """Begin a chapter again; what is there now is kept as a dated copy.

        Args:
            chapter: its number or name, e.g. "03" or "03_forward_hooks".

        Returns:
            What was done, in a line.

        Raises:
            CopyError: there is no such chapter, or the copy cannot be written; nothing is lost.

        """
        found = find_chapter(chapter, self.source)
        with self._lock():
            known, edition, name = self._read(), make_edition(found), found.name
            path, laid = self.folder / name, known["laid"].setdefault(name, [])
            if hash_content(edition) not in laid:
                laid.append(hash_content(edition))
                self._write(known)
            if _is_strange(path):
                raise CopyError(f"{path} is a link or not a file. Move it away, and run this again.")
            self._put_back(path, laid)
            if not path.exists():
                self._lay_down(path, edition)
                return f"{name} was missing, and has been restored."
            if _is_one_of(path, laid):
                self._replace_untouched(path, edition, laid)
                return f"{name} has been reset; it had none of your work in it."
            earlier = self.folder / EARLIER_FOLDER
            earlier.mkdir(exist_ok=True)
            if earlier.is_symlink():
                raise CopyError(f"{earlier} is a link. Move it away, and run this again.")
            kept = _find_free_path(earlier / name, f", {datetime.now():%Y-%m-%d %H.%M}")
            try:
                os.link(path, kept)
            except OSError:  # a disk without links, or a full one: then nothing has been changed yet
                _write_new(kept, path.read_bytes())
            self._lay_down(path, edition, over=True)
            known["latest"][name] = hash_content(edition)
            self._write(known)
            return (
                f"{name} has been reset. Your work is in {EARLIER_FOLDER}/{kept.name}. "
                "Solved exercises still count as solved. If the page is open: File → Reload Notebook from Disk."
            )

    # -- files ----------------------------------------------------------------------------------------------------

    def _lay_down(self, path: Path, edition: bytes, over: bool = False) -> None:
        """Put a file where there is none: all of it at once, or nothing."""
        new = self.state_folder / f"{path.name}.new"
        _write_new(new, edition)
        if over:
            new.replace(path)
            return
        try:
            os.link(new, path)  # which, unlike a renaming, never replaces what somebody has saved meanwhile
        except FileExistsError:
            pass
        except OSError:  # a disk without links
            if not path.exists():
                new.replace(path)
        new.unlink(missing_ok=True)

    def _replace_untouched(self, path: Path, edition: bytes, laid: list[str]) -> bool:
        """Replace a file that is as it was laid down; not if the learner saves it at this very moment."""
        new, old = self.state_folder / f"{path.name}.checked", self.state_folder / f"{path.name}.old"
        _write_new(new, edition)  # no room for it? then nothing has moved yet
        new.unlink()
        path.replace(old)
        if _is_one_of(old, laid):
            self._lay_down(path, edition)
            old.unlink()
            return True
        self._put_back(path, laid)
        return False

    def _put_back(self, path: Path, laid: list[str]) -> None:
        """Put back what a run that was killed had moved away, if it is the learner's."""
        old = self.state_folder / f"{path.name}.old"
        if not old.exists():
            return
        if not _is_one_of(old, laid):
            old.replace(_find_free_path(path, ", saved") if path.exists() else path)
        old.unlink(missing_ok=True)

    def _list_new_paths(self, name: str) -> Iterator[Path]:
        """The names that a new version of a changed chapter may get."""
        stem = name.removesuffix(".ipynb")
        yield self.folder / f"{stem}-new.ipynb"
        for number in range(2, 1000):
            yield self.folder / f"{stem}-new-{number}.ipynb"

    # -- what is known --------------------------------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one process at a time work in the copy, and turn what the system says into a sentence."""
        from filelock import FileLock, Timeout  # `check` runs where it is not installed

        try:
            self.state_folder.mkdir(parents=True, exist_ok=True)
            if self.state_folder.is_symlink():
                raise CopyError(f"{self.state_folder} is a link, so files would be written elsewhere. Remove it.")
            with FileLock(self.state_folder / "lock", timeout=PATIENCE):
                yield
        except Timeout:
            raise CopyError(f"another process has been using {self.folder} for {PATIENCE} s. Try again") from None
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename or self.folder}"
            raise CopyError(
                f"{what}. Your work was not changed. Solve this problem, and run the command again."
            ) from error

    def _read(self) -> dict[str, Any]:
        """Every edition that was laid down, so that none is taken for the learner's work; and the latest of each."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            file = self.state_folder / "copy.json"
            known = json.loads("" if _is_strange(file) else file.read_text(encoding="utf-8"))
            laid, latest = dict(known["laid"]), dict(known["latest"])
            texts = [*laid, *latest, *latest.values(), *(each for hashes in laid.values() for each in hashes)]
            if all(isinstance(each, str) for each in texts) and all(isinstance(each, list) for each in laid.values()):
                return {"laid": laid, "latest": latest}
        return {"laid": {}, "latest": {}}

    def _write(self, known: dict[str, Any]) -> None:
        replace_text(self.state_folder / "copy.json", json.dumps(known, indent=1, sort_keys=True))


def find_chapter(chapter: str, source: Path = NOTEBOOKS) -> Path:
    """Find a chapter's built notebook.

    Args:
        chapter: its number or name, e.g. "3", "03" or "03_forward_hooks".
        source: the folder of the built notebooks.

    Raises:
        CopyError: there is no such chapter; says which there are.

    """
    number = f"{int(chapter):02}" if chapter.isdecimal() else chapter.removesuffix(".ipynb")
    for path in list_chapters(source):
        if number in (path.stem, path.stem[:2]):
            return path
    numbers = ", ".join(path.stem[:2] for path in list_chapters(source) if path.stem[:2].isdecimal())
    raise CopyError(f"there is no chapter '{chapter}'. The chapters are {numbers}")


def list_chapters(source: Path) -> list[Path]:
    """The notebooks of the course: the chapters in order, then the index, which names them all."""
    return [*sorted(source.glob("[0-9][0-9]_*.ipynb")), *source.glob("index.ipynb")]


def make_edition(path: Path) -> bytes:
    """The bytes of the learner's edition of a notebook."""
    return encode_notebook(make_learner_edition(json.loads(path.read_text(encoding="utf-8"))))


def hash_content(content: bytes) -> str:
    """What tells one edition from another."""
    return hashlib.sha256(content).hexdigest()


def replace_text(path: Path, text: str) -> None:
    """Write a small file: all of it, or nothing."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        _write_new(new, text.encode())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that is a new one: never through a link that somebody else has put there."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)


def _is_strange(path: Path) -> bool:
    """Whether a link, a FIFO or a folder is where a file belongs."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _is_one_of(path: Path, hashes: list[str]) -> bool:
    return not _is_strange(path) and path.exists() and hash_content(path.read_bytes()) in hashes


def _find_free_path(path: Path, more: str) -> Path:
    """A name like that of a file, which no file has yet."""
    names = (path.with_stem(f"{path.stem}{more}{number}") for number in ("", *(f" ({n})" for n in range(2, 1000))))
    return next(name for name in names if not name.exists())
