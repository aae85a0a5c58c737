"""The command: `python -m hookscope_course.learner [--to FOLDER] [reset NN | progress]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hookscope_course.learner.copies import KEEP, NOTEBOOKS, Copy, CopyError
from hookscope_course.learner.progress import Progress


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hookscope_course.learner", description="Your own copy of the course: it is never overwritten."
    )
    parser.add_argument("--to", type=Path, default=NOTEBOOKS.parent / "course", help="its folder (default: course/)")
    commands = parser.add_subparsers(dest="command")
    reset = commands.add_parser("reset", help="begin a chapter again; what you wrote is kept as a dated copy")
    reset.add_argument("chapter", help="its number, e.g. 03")
    commands.add_parser("progress", help="which exercises are done, and what is next")
    options = parser.parse_args(arguments)
    folder = options.to.expanduser().resolve()
    try:
        if options.command == "reset":
            print(Copy(folder).reset(options.chapter))
        elif options.command == "progress":
            if not (folder / KEEP).is_dir():
                raise CopyError(f"{folder} is no copy of the course; `make lab` makes one")
            print(Progress(folder))
        else:
            for line in Copy(folder).update():
                print(line)
    except CopyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
