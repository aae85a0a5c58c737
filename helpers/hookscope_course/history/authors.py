"""What each document's author would have seen: the claims that hang on the release of torch, and how they stand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from hookscope_course.history.records import matches
from hookscope_course.paths import LESSONS

__all__ = ["SIGNS", "DatedClaim", "Standing", "list_claims", "list_documents", "read_dated_claims", "read_snippets"]

Standing = Literal["true", "partly true", "not true", "not possible yet"]

SIGNS: dict[Standing, str] = dict(zip(get_args(Standing), "✓~✗–", strict=True))
"""A sign for each standing, so that it needs no colour."""


@dataclass(frozen=True)
class DatedClaim:
    """A claim, or one half of it, and the fact that decides it; from claims.toml beside this file."""

    id: str
    says: str
    fact: str
    standing: dict[str, Standing]

    @property
    def document(self) -> str:
        """The document, such as "D0"."""
        return self.id.partition(".")[0]

    def judge(self, answer: str) -> Standing:
        """Say how the claim stands where torch answers `answer`.

        Raises:
            ValueError: claims.toml does not say what such an answer means.

        Example:
            >>> DatedClaim("D9.9", "it works", "a_fact", {"yes": "true", "Error…": "not true"}).judge("Error: no")
            'not true'

        """
        for expected, standing in self.standing.items():
            if matches(answer, expected):
                return standing
        raise ValueError(f"claim {self.id}: {self.fact} answers {answer!r}; say in history/claims.toml what that means")


@cache
def read_dated_claims() -> tuple[DatedClaim, ...]:
    """Return all of them, in the order of the documents."""
    rows = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))["claim"]
    return tuple(DatedClaim(**row) for row in rows)


@cache
def read_snippets() -> dict[str, str]:
    """Return a few lines of code by fact, which print what torch answers."""
    rows = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))["snippet"]
    return {row["fact"]: row["code"].strip() for row in rows}


def list_documents() -> dict[str, str]:
    """Return the documents that have such claims: `{"D0": its title, …}`."""
    rows = tomllib.loads((LESSONS / "90_claims" / "claims.toml").read_text(encoding="utf-8"))["document"]
    dated = {claim.document for claim in read_dated_claims()}
    return {row["id"]: row["title"] for row in rows if row["id"] in dated}


def list_claims(document: str) -> list[DatedClaim]:
    """Return the claims of one document."""
    return [claim for claim in read_dated_claims() if claim.document == document]
