"""The command: `hookscope lab` where the course is installed; `python -m hookscope_course lab` everywhere.

Nothing here imports torch but `check`: it runs before every `make lab`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path

from hookscope_course.lab import become_lab, check_lab
from hookscope_course.learner.copies import STATE_FOLDER, Copy, CopyError, find_chapter
from hookscope_course.learner.progress import Progress
from hookscope_course.paths import BUILD, IS_INSTALLED, NOTEBOOKS, format_command

__all__ = ["main"]

Options = argparse.Namespace


def _find_copy() -> Path:
    """The learner's copy that is meant where nobody names one: this folder, if it is one, or `course` in it."""
    if not IS_INSTALLED:
        return NOTEBOOKS.parent / "course"
    return Path() if Path(STATE_FOLDER).is_dir() else Path("course")


def _run_lab(options: Options, more: list[str]) -> None:
    check_lab(more)
    page = find_chapter(options.chapter).name
    _update_copy(options, [])
    become_lab(options.to, f"/lab/tree/{page}", *more)


def _update_copy(options: Options, more: list[str]) -> None:
    is_new = not (options.to / STATE_FOLDER).exists()
    if is_new and options.to.is_dir() and any(not each.name.startswith(".") for each in options.to.iterdir()):
        raise CopyError(f"{options.to} has other files in it. Choose an empty folder or a new one with --to FOLDER")
    for line in Copy(options.to).update() or ["Your copy of the course is up to date."]:
        print(line)
    if options.command == "course":
        print(f"It is in {options.to}. `{format_command('lab')}` opens it.")


def _reset_chapter(options: Options, more: list[str]) -> None:
    print(Copy(_require_copy(options.to)).reset(options.chapter))


def _show_progress(options: Options, more: list[str]) -> None:
    print(Progress(_require_copy(options.to)))


def _require_copy(copy: Path) -> Path:
    if not (copy / STATE_FOLDER).is_dir():
        raise CopyError(
            f"{copy} is not a copy of the course. `{format_command('lab')}` creates one. If your copy is in another "
            "folder, name it: --to FOLDER"
        )
    return copy


def _check_setup(options: Options, more: list[str]) -> int:
    from hookscope_course.setup_check import examine

    report = examine(lambda line: print(line, flush=True))
    print(report.end)
    return 0 if report.is_right else 1


def _show_class(options: Options, more: list[str]) -> None:
    from hookscope_course.classroom.projector import open_chapter

    check_lab(more)
    open_chapter(options.chapter, options.to, *more)


def _write_slides(options: Options, more: list[str]) -> None:
    from hookscope_course.classroom.slides import write_slides

    if not options.chapters:
        raise CopyError("name the chapters, as in: hookscope slides 02 04")
    for chapter in options.chapters:
        print(write_slides(chapter, options.to))


def _write_handout(options: Options, more: list[str]) -> None:
    from hookscope_course.classroom.handout import write_handout

    pages = write_handout(options.chapters, options.to)
    print(f"{options.to}: {len(pages)} chapter{'s' * (len(pages) != 1)}, without solutions")
    way = "install the same wheel" if IS_INSTALLED else "see docs/install.md"
    print(f"Learners also need the course to run them: {way}")


def _strip_notebooks(options: Options, more: list[str]) -> int:
    from hookscope_course.classroom.stripping import NotebookError, strip_file

    status = 0
    for notebook in options.notebooks:
        try:
            print(strip_file(notebook))
        except (NotebookError, OSError) as error:  # FileExistsError, too
            print(error if isinstance(error, NotebookError) else f"{error.filename}: {error.strerror}", file=sys.stderr)
            status = 1
    return status


def _make_parser() -> argparse.ArgumentParser:
    name = "hookscope" if IS_INSTALLED else "python -m hookscope_course"
    parser = argparse.ArgumentParser(prog=name, description="A course on PyTorch hooks, as Jupyter notebooks.")
    parser.add_argument("-V", "--version", action="version", version=f"hookscope {version('hookscope')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Options, list[str]], int | None], help: str) -> argparse.ArgumentParser:  # noqa: A002
        added = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        added.set_defaults(run=run)
        return added

    copy, mine = _find_copy(), "the folder of your copy (default: %(default)s)"
    lab = command(
        "lab", _run_lab, "open your own copy of the course in JupyterLab; other options are passed to JupyterLab"
    )
    lab.add_argument("--chapter", default="index", help="the chapter to open, e.g. 03; `lab 03` does the same")
    course = command("course", _update_copy, "create or update your own copy of the course")
    reset = command("reset", _reset_chapter, "reset a chapter; your work is saved as a dated copy")
    reset.add_argument("chapter", help="the chapter number, e.g. 03")
    progress = command("progress", _show_progress, "show which exercises you have solved, and what comes next")
    for each in (lab, course, reset, progress):
        each.add_argument("--to", type=Path, default=copy, help=mine)
    command("check", _check_setup, "check that everything is installed and that a hook runs")
    opens = command("class", _show_class, "show a chapter to a class; other options are passed to JupyterLab")
    opens.add_argument("chapter", nargs="?", default="00", help="the chapter number, e.g. 02 (default: 00)")
    opens.add_argument("--to", type=Path, default=BUILD / "class", help="a folder for its files (default: %(default)s)")
    writes = command("slides", _write_slides, "write chapters as slides that need no kernel and no network")
    slides = Path("slides") if IS_INSTALLED else BUILD / "slides"
    writes.add_argument("--to", type=Path, default=slides, help="a folder for them (default: %(default)s)")
    packs = command("handout", _write_handout, "pack chapters for learners, without solutions")
    packs.add_argument("--to", type=Path, required=True, help="a new folder, or a file ending in .zip")
    strips = command("strip", _strip_notebooks, "write NAME.stripped.ipynb: only the text of the cells; safe to open")
    strips.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="it stays as it is")
    for each in (writes, packs):
        each.add_argument("chapters", nargs="*", help="the chapter numbers, e.g. 02 04")
    parser.set_defaults(names=[*commands.choices])
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for, and return the exit status; `lab` and `class` become JupyterLab and do not return."""
    parser = _make_parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["lab"] and arguments[1:2] and not arguments[1].startswith("-"):
        # Not a positional argument: in `lab --port 8890` it would take the number.
        arguments = ["lab", f"--chapter={arguments[1]}", *arguments[2:]]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    names = parser.get_default("names")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in names:
        near = get_close_matches(arguments[0], names, n=1)
        parser.error(
            f"there is no command {arguments[0]!r}"
            + (f"; did you mean {near[0]!r}?" if near else f". The commands are {', '.join(names)}")
        )
    options, more = parser.parse_known_args(arguments)
    if more and options.command not in ("lab", "class"):
        parser.error(f"{options.command} does not take {' '.join(more)}; see `{parser.prog} {options.command} --help`")
    try:
        if "to" in options:
            options.to = options.to.expanduser().resolve()
        status = options.run(options, more) or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nStopped. Your work was not changed. Run this again.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `hookscope progress | head -1` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CopyError, LookupError, ModuleNotFoundError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or getattr(options, 'to', '')}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
