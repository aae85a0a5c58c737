"""The command: `python -m hookscope_course.classroom open 02 | slides 02 … | handout 02 … --to FOLDER_OR_ZIP`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hookscope_course.classroom.handout import handout
from hookscope_course.classroom.projector import open_chapter
from hookscope_course.classroom.slides import write_slides
from hookscope_course.learner.copies import NOTEBOOKS, CopyError

BUILD = NOTEBOOKS.parent / "build"


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for, and return the exit status; `open` becomes JupyterLab and does not return."""
    parser = argparse.ArgumentParser(prog="python -m hookscope_course.classroom", description="The course for a class.")
    commands = parser.add_subparsers(dest="command", required=True)
    opens = commands.add_parser("open", help="show a chapter to a class; further options are JupyterLab's")
    opens.add_argument("chapter", help="its number, e.g. 02")
    opens.add_argument("--to", type=Path, default=BUILD / "class", help="a folder for it (default: build/class)")
    writes = commands.add_parser("slides", help="write chapters as slides that need no kernel and no network")
    packs = commands.add_parser("handout", help="pack the learner's edition of chapters, without solutions")
    for command, to, what in (
        (writes, BUILD / "slides", "a folder"),
        (packs, None, "a new folder, or a file ending in .zip"),
    ):
        command.add_argument("chapters", nargs="+", help="their numbers, e.g. 02 04")
        command.add_argument("--to", type=Path, default=to, required=to is None, help=what)
    options, rest = parser.parse_known_args(arguments)
    try:
        to = options.to.expanduser().resolve()
        if options.command == "open":
            open_chapter(options.chapter, to, *rest)
        if rest:
            parser.error(f"unknown: {' '.join(rest)}")
        if options.command == "slides":
            for chapter in options.chapters:
                print(write_slides(chapter, to))
        else:
            pages = handout(options.chapters, to)
            print(f"{to}: {len(pages)} chapter{'s' * (len(pages) != 1)}, without solutions")
    except (CopyError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or options.to}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
