"""Where the site and its repository are on the web, if anybody has said so: nothing here is known before.

`HOOKSCOPE_SITE` is the address of the site, and `GITHUB_REPOSITORY` its repository as "owner/name". The workflow
`pages.yml` sets both.
"""

from __future__ import annotations

import os
import tomllib
from urllib.parse import quote

from lessons.build.lesson_source import ROOT

SOURCE: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
"""The address of the repository."""


def get_site_address() -> str:
    """Return the address of the site, with a slash at its end; empty if nobody has set it."""
    address = os.environ.get("HOOKSCOPE_SITE", "").rstrip("/")
    return f"{address}/" if address else ""


def list_launch_addresses(page: str = "") -> dict[str, str]:
    """Return the addresses that open the course in a browser, by name; none if nobody has set the repository.

    Both begin with a learner's copy of the course, in which nothing is answered.

    Args:
        page: the name of a notebook; Binder opens it.

    """
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    if not repository:
        return {}
    path = f"?labpath={quote(f'course/{page}.ipynb', safe='')}" if page else ""
    return {
        "Binder": f"https://mybinder.org/v2/gh/{repository}/HEAD{path}",
        "Codespaces": f"https://codespaces.new/{repository}",
    }
