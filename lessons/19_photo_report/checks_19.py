"""The exercise for chapter 19: a report on one photograph, worth six points; every claim in it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope import samples
from hookscope_course.chapters.ch19_photo_report import NO_WEIGHTS, Hook, review
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q1(report: Mapping[str, Any] | object, quiet: Hook | None) -> Wrong | None:
    if not samples.has_photo_weights():
        return Wrong(NO_WEIGHTS)
    if not isinstance(report, Mapping):
        return Wrong(f"`report` is {report!r}; it should be a dict with the six fields of the question")
    found = review(report, quiet)
    return None if found.points == len(found.criteria) else Wrong(found.to_text())
