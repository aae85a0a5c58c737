"""Break a clone at one place after the other, and say which test catches it.

    git clone . ../broken && python -m tests.mutations ../broken          all places
    python -m tests.mutations ../broken p01 f03                           these

Each break is undone by git in the clone. A place where nothing is caught is named at the end. It takes about two hours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.mutations.places import BREAKS, Break

SECONDS = 900


def tests_of(tree: Path, place: Break) -> list[str]:
    """List the tests that are likely to catch a break: those of its rooms, and those that name what it is about."""
    rooms = [room for each in place.rooms for room in (each, f"{each}.py") if (tree / room).exists()]
    assert len(rooms) == len(place.rooms), (
        f"{place.id}: a room of {place.rooms} has gone; mend tests/mutations/places.py"
    )
    files = [file for file in (tree / "tests").rglob("test_*.py") if "deploy" not in file.parts]
    naming = [file for file in files if any(re.search(topic, file.read_text("utf-8")) for topic in place.topics)]
    if "/figures/" in place.file or place.file.endswith(".js"):  # its rows come from the figures' own files
        naming.append(tree / "tests/browser/figures/test_every_figure.py")
    browser = [file for file in naming if "browser" in file.parts]
    others = [file for file in naming if file not in browser]
    order = [*browser, *others] if place.browser_first else [*others, *browser]
    return list(dict.fromkeys([*rooms, *(file.relative_to(tree).as_posix() for file in order)]))


def first_failure(tree: Path, place: Break) -> str:
    """Break a clone, run the tests until one fails, undo it; return its name, or nothing."""
    file = tree / place.file
    text = file.read_text(encoding="utf-8")
    assert text.count(place.old) == 1, f"{place.id}: {place.file} has changed; mend tests/mutations/places.py"
    file.write_text(text.replace(place.old, place.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--tb=no", "-p", "no:cacheprovider"]
    paths = {"PYTHONPATH": os.pathsep.join([f"{tree}/helpers", str(tree)])}
    try:
        done = subprocess.run(
            [*command, *tests_of(tree, place)],
            cwd=tree,
            env=os.environ | paths,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", done.stdout, re.MULTILINE)
        return found[1] if found else ""
    finally:
        subprocess.run(["git", "checkout", "-q", "--", place.file], cwd=tree, check=True)


def main(arguments: list[str]) -> int:
    """Try all places, or those that are named; return how many breaks nothing caught."""
    tree, names = Path(arguments[0]).resolve(), arguments[1:]
    missed = []
    for place in BREAKS:
        if names and place.id not in names:
            continue
        caught = ""
        try:
            caught = first_failure(tree, place)
        except subprocess.TimeoutExpired:
            print(f"{place.id}  {place.what}: nothing in {SECONDS} seconds, and tests were left", flush=True)
        else:
            print(f"{place.id}  {place.what}: {caught or 'NOTHING'}", flush=True)
        missed += [] if caught else [place.id]
    print(f"caught by nothing: {', '.join(missed) or 'none'}")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
