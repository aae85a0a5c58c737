"""The exercise for chapter 21: a report on one head, worth six points; every claim in it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope_course.chapters.ch21_head_report import Hook, review
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q1(report: Mapping[str, Any] | object, steer: Hook | None) -> Wrong | None:
    if not isinstance(report, Mapping):
        return Wrong(f"`report` is {report!r}; it should be a dict with the five fields of the question")
    found = review(report, steer)
    return None if found.points == len(found.criteria) else Wrong(found.to_text())
