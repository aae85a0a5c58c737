"""Gather a class's notebooks of a chapter for grading: each is read as its learner, and only if it is a plain file."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hub.people import People
from hub.settings import ROOT, HubError, Settings

__all__ = ["collect"]

LARGEST = 20 << 20  # bytes of a notebook; one of the course with its outputs has one or two million
_SECONDS = 20
# Runs as the learner: a link leads to nothing that the learner could not read, a FIFO is not waited for, and a file of
# somebody else's, or one that has a second name, is not taken for the learner's work.
_READ = """
import os, stat, sys
try:
    file = os.open(sys.argv[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
except OSError as error:
    sys.exit("is a link" if os.path.islink(sys.argv[1]) else error.strerror)
found = os.fstat(file)
if not stat.S_ISREG(found.st_mode): sys.exit("is not a regular file")
if found.st_uid != os.getuid(): sys.exit("belongs to another user")
if found.st_nlink != 1: sys.exit("has a second name (a hard link)")
if found.st_size > int(sys.argv[2]): sys.exit(f"has {found.st_size:,} bytes, more than {int(sys.argv[2]):,}")
with os.fdopen(file, "rb") as reading: sys.stdout.buffer.write(reading.read(int(sys.argv[2])))
"""


def collect(settings: Settings, chapter: str, course: Path) -> Iterator[str]:
    """Copy each learner's notebook of a chapter to where nbgrader looks for it; yields a line for each.

    Args:
        settings: which say who the learners are.
        chapter: its number, as in "02".
        course: the folder that `make nbgrader` wrote.

    Raises:
        HubError: there is no such folder or chapter.

    """
    names = [path.stem for path in sorted((ROOT / "notebooks").glob(f"{chapter}_*.ipynb"))]
    if len(names) != 1:
        raise HubError(f"Chapter {chapter!r} does not exist. Pass the number of a chapter, such as 02.")
    if not (course / "source" / names[0]).is_dir():
        raise HubError(f"{course} has no assignment {names[0]}; `make nbgrader CHAPTERS={chapter} DEST=…` creates one.")
    owner = course.stat()
    if owner.st_mode & 0o077:
        yield f"Other users can read this class's work and grades in {course}. To prevent this: chmod 700 {course}"
    for learner in People(settings).names():
        user = pwd.getpwnam(learner)
        path = f"{user.pw_dir}/course/{names[0]}.ipynb"
        words = [sys.executable, "-I", "-S", "-c", _READ, path, str(LARGEST)]
        try:
            done = subprocess.run(
                words, user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/", env={}, capture_output=True,
                timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield f"{learner}: not collected; {path} could not be read in {_SECONDS} s"
            continue
        if done.returncode:
            yield f"{learner}: not collected; {path}: {done.stderr.decode(errors='replace').strip()[:200]}"
            continue
        to = course / "submitted" / learner / names[0] / f"{names[0]}.ipynb"
        usual = os.umask(0o077)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(done.stdout)
        os.umask(usual)
        for each in (to, *to.parents[:3]):  # who grades need not be root
            os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
        yield f"{learner}: collected"
