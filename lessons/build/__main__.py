"""The command: `python -m lessons.build`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hookscope.samples import has_photo_weights, has_sentence_weights
from lessons.build import course_page, plan_page
from lessons.build.chapter_notebook import Chapter, parse
from lessons.build.execution import execute_all, find_difference, find_orphans
from lessons.build.lesson_source import LessonError, lesson_files


def parse_all(paths: Iterable[Path]) -> Iterator[Chapter | LessonError]:
    """Every lesson, parsed, or why it does not parse: one bad lesson does not hide the next."""
    for path in paths:
        try:
            yield parse(path)
        except LessonError as error:
            yield error


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lessons.build", description="Turn lessons into notebooks.")
    parser.add_argument("chapters", nargs="*", metavar="NN", help="chapters to build, e.g. 01 or 01_calling_a_module")
    parser.add_argument("--all", action="store_true", help="build every chapter, changed or not")
    parser.add_argument("--check", action="store_true", help="say what is out of step, run nothing")
    parser.add_argument(
        "--pages", action="store_true", help="write the lists in docs/course.md and the teacher's pages, run nothing"
    )
    options = parser.parse_args(arguments)

    parsed = list(parse_all(lesson_files()))
    errors = [item for item in parsed if isinstance(item, LessonError)]
    chapters = [item for item in parsed if isinstance(item, Chapter)]
    for error in errors:
        print(error, file=sys.stderr)
    for name in options.chapters:
        if not any(chapter.name.startswith(name) for chapter in chapters):
            have = ", ".join(chapter.number for chapter in chapters) or "none"
            print(f"no chapter '{name}'; there are: {have}", file=sys.stderr)
            return 2

    if options.check:
        stale = [(chapter, why) for chapter in chapters if (why := find_difference(chapter))]
        for chapter, why in stale:
            print(f"notebooks/{chapter.target.name} {why}; run: python -m lessons.build {chapter.number}")
        extra = [] if errors else find_orphans(chapters)
        for path in extra:
            print(f"notebooks/{path.name} has no lesson; delete it or write lessons/{path.stem}/lesson.md")
        old = not errors and not course_page.is_up_to_date(chapters)
        if old:
            print("docs/course.md lists other chapters than there are; run: python -m lessons.build")
        try:
            pages = [] if errors else plan_page.list_stale_pages(chapters)
        except LessonError as error:
            print(error, file=sys.stderr)
            return 1
        for name in pages:
            print(f"teaching/{name} is out of step with the lessons; run: python -m lessons.build")
        return 1 if errors or stale or extra or old or pages else 0

    if options.pages:
        todo = []
    elif options.chapters:
        todo = [c for c in chapters if any(c.name.startswith(name) for name in options.chapters)]
    else:
        todo = [chapter for chapter in chapters if options.all or find_difference(chapter)]
    if todo and not (has_photo_weights() and has_sentence_weights()):
        print(
            "The weights of the photo network or of the sentence encoder are missing, and pages need them: make dev",
            file=sys.stderr,
        )
        return 2
    if not errors:
        course_page.write(chapters)
    failures = asyncio.run(execute_all(todo)) if todo else []
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    if not errors and not failures:
        try:
            plan_page.write(chapters)
        except LessonError as error:
            errors.append(error)
            print(f"\n{error}", file=sys.stderr)
    report = [f"{len(todo) - len(failures)} built", f"{len(failures) + len(errors)} failed"]
    if not options.chapters:
        report.insert(1, f"{len(chapters) - len(todo)} already up to date")
    print(", ".join(report))
    return 1 if failures or errors else 0


if __name__ == "__main__":
    sys.exit(main())
