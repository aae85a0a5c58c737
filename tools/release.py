"""Make a release: check, build and tag it here. Nothing is published: what is left to do is said at the end.

python -m tools.release 0.2.0
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = ROOT / "helpers" / "hookscope" / "__init__.py"
_ASSIGNED = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


class NotReadyError(Exception):
    """Something has to be done before a release; the message says what."""


def run(*words: str) -> str:
    """Run a command in the repository, and return what it printed.

    Raises:
        NotReadyError: it failed; holds the end of what it said.

    """
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReadyError(f"this failed: {' '.join(words)}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def wrong_version(version: str, code: str, citation: str, changes: str, tags: list[str], today: date) -> str:
    """Say what does not fit to the version that is to be released; nothing if all does.

    Args:
        version: such as "0.2.0".
        code: the text of the file that says `__version__`.
        citation: the text of CITATION.cff.
        changes: the text of CHANGELOG.md.
        tags: the tags that there are.
        today: the date.

    Example:
        >>> code, changes = '__version__ = "0.2.0"', "## 0.2.0, 2026-12-01"
        >>> wrong_version("0.2.0", code, "version: 0.2.0", changes, [], date(2026, 12, 1))
        ''
        >>> wrong_version("0.3.0", code, "version: 0.2.0", changes, [], date(2026, 12, 1))
        'hookscope.__version__ is 0.2.0; set it to 0.3.0'

    """
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        return f"{version!r} is no version; give one such as 0.2.0 or 0.2.0rc1"
    if f"v{version}" in tags:
        return f"v{version} is there already"
    if version not in (there := _ASSIGNED.findall(code)):
        return f"hookscope.__version__ is {', '.join(there) or 'nowhere'}; set it to {version}"
    if f"version: {version}\n" not in f"{citation}\n":
        return f"CITATION.cff names another version; set it to {version}"
    if f"## {version}, {today}" not in changes.splitlines():
        return f'CHANGELOG.md needs the heading "## {version}, {today}" above what is new'
    return ""


def main(words: list[str]) -> int:
    """Check, build and tag the version that is asked for, and return the exit status."""
    if len(words) != 1:
        print("usage: python -m tools.release VERSION", file=sys.stderr)
        return 2
    (version,) = words
    code, citation, changes = (
        path.read_text("utf-8") for path in (VERSION, ROOT / "CITATION.cff", ROOT / "CHANGELOG.md")
    )
    try:
        wrong = wrong_version(version, code, citation, changes, run("git", "tag").split(), date.today())
        if wrong:
            raise NotReadyError(wrong)
        if changed := run("git", "status", "--porcelain"):
            raise NotReadyError(f"these are not committed:\n{changed}")
        for target in ("lint", "test-all", "wheel"):
            print(f"make {target} …", flush=True)
            run("make", target)
        if changed := run("git", "status", "--porcelain"):
            raise NotReadyError(f"making it has changed these:\n{changed}")
        run("git", "tag", "--annotate", f"v{version}", "--message", f"hookscope {version}")
    except NotReadyError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"v{version} is tagged, and in dist/ is what was tested. Nothing is published. To do so:")
    print(f"  git push origin v{version}\n  gh workflow run publish.yml --ref v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
