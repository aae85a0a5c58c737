"""Choose a document and a release of torch, and see what its author would have seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures.picture import Rows
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.figures.history_chart import chart
from hookscope_course.figures.kit.replay import ALL, Choice, Replay
from hookscope_course.history.authors import SIGNS, list_claims, list_documents, read_snippets
from hookscope_course.history.records import (
    MISSING,
    get_current_answers,
    get_installed_release,
    get_newest_release,
    history,
    releases,
    shorten_answer,
)

__all__ = ["AuthorSlider"]


def _list_releases(slider: AuthorSlider) -> Iterator[Choice]:
    for name, at in product(slider._documents, range(len(slider._releases))):
        yield {"document": name, "_at": at}


class AuthorSlider(HookWidget):
    """See what the author of a document would have seen with a release of torch, beside what yours shows.

    Only claims that depend on the release are listed. What the release does comes from the records; what your torch
    does is tried when the widget is made.

    Args:
        document: "D0" to "D4".
        release: one of `hookscope_course.history.records.releases()`; by default the newest.

    Attributes:
        document: which document.
        release: which release.
        rows: the claims, with what each torch shows and how the claim stands there.
        verdict: how many claims were true, in a sentence or two.

    Raises:
        ValueError: no such document, or a release without a record.

    Example:
        >>> slider = AuthorSlider("D4", "1.1.0")
        >>> slider.rows[1]["torch 1.1.0"]
        '✓ true'
        >>> slider.release = "1.2.0"
        >>> slider.rows[1]["torch 1.2.0"]
        '✗ not true'

    """

    document = traitlets.Unicode("D0").tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)  # all that the page draws
    _at = traitlets.Int(0).tag(sync=True)  # the place of `release` among `_releases`
    _releases = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _documents = traitlets.Dict().tag(sync=True)
    _code = traitlets.Dict().tag(sync=True)  # a document → a snippet, or nothing, for each of its claims

    _esm, _css = assets(Path(__file__).with_suffix(""))
    replay = Replay(("document", "_at"), {ALL: _list_releases})

    def __init__(self, document: str = "D0", release: str | None = None) -> None:
        known = releases()
        at = _place(get_newest_release() if release is None else release, known)
        super().__init__(document=document, _at=at, _releases=known, _documents=list_documents(), _code=_code())
        self._show()

    @property
    def release(self) -> str:
        """The release that is looked at."""
        return str(self._releases[self._at])

    @release.setter
    def release(self, release: str) -> None:
        self._at = _place(release, self._releases)

    @property
    def rows(self) -> list[dict[str, object]]:
        """The claims, with what each torch shows and how the claim stands there."""
        rows: list[dict[str, object]] = []
        for claim in list_claims(self.document):
            then, now = history(claim.fact)[self.release], get_current_answers()[claim.fact]
            here = f"torch {get_installed_release()}, run here"
            rows.append(
                {
                    "claim": claim.id,
                    "it says": claim.says,
                    f"torch {self.release} shows": _shown(then, claim.judge(then)),
                    f"torch {self.release}": _standing(claim.judge(then)),
                    f"{here}, shows": _shown(now, claim.judge(now)),
                    here: _standing(claim.judge(now)),
                }
            )
        return rows

    @property
    def verdict(self) -> str:
        """How many of the claims are true with either torch, in a sentence or two."""
        claims = list_claims(self.document)
        then = sum(claim.judge(history(claim.fact)[self.release]) == "true" for claim in claims)
        now = sum(claim.judge(get_current_answers()[claim.fact]) == "true" for claim in claims)
        many = "1 claim that depends" if len(claims) == 1 else f"{len(claims)} claims that depend"
        return (
            f"{self.document} makes {many} on the release of torch. True in torch {self.release}: {then}. "
            f"True in torch {get_installed_release()}, which runs here: {now}."
        )

    def numbers(self) -> Rows:
        """List the claims."""
        return self.rows

    def summary(self) -> str:
        """Say what is looked at, and how many claims are true."""
        return f"AuthorSlider {self.document}, torch {self.release}: {self.verdict}"

    @traitlets.validate("document")
    def _known_document(self, proposal: Mapping[str, Any]) -> str:
        document: str = proposal["value"]
        if document not in list_documents():
            raise ValueError(f"no document {document!r}; there are {', '.join(list_documents())}")
        return document

    @traitlets.observe("document", "_at")
    @show_errors
    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._releases:  # not yet while the widget is being made
            self._show()

    def _show(self) -> None:
        names = [*dict.fromkeys(claim.fact for claim in list_claims(self.document))]
        picture = chart(names, self.verdict, marked=self.release)
        with self.hold_sync():
            self.png, self.alt = picture.png, picture.alt
            self.shown = {
                "verdict": self.verdict,
                "rows": [[*row.values()] for row in self.rows],
                "here": get_installed_release(),
            }


def _code() -> dict[str, list[str]]:
    return {name: [read_snippets().get(claim.fact, "") for claim in list_claims(name)] for name in list_documents()}


def _shown(answer: str, standing: Any) -> str:
    """Write what a release does; what it does not have can still leave a claim true."""
    if answer != MISSING:
        return shorten_answer(answer)
    return "nothing in this release contradicts it" if standing == "true" else "this release has no such thing"


def _standing(standing: Any) -> str:
    return f"{SIGNS[standing]} {standing}"


def _place(release: str, known: list[str]) -> int:
    if release not in known:
        raise ValueError(f"no record of torch {release!r}; there are {', '.join(known)}")
    return known.index(release)
