"""The exercise of chapter 20: a report on a training run that is lost, and the watchdog that caught it; six points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope_course.chapters.ch20_watchdog_report import Watch, review
from hookscope_course.practice import Wrong, blind_to


@blind_to(swallows_errors="a layer raises in the `with` block, and point 6 sees to it that this comes through")
def check_q1(report: Mapping[str, Any] | object, watch: Watch | object) -> Wrong | None:
    if not isinstance(report, Mapping):
        return Wrong(f"`report` is {report!r}; it is a dict with the three fields of the question")
    if not callable(watch):
        return Wrong(f"`watch` is {watch!r}; write a function for `with watch(model) as alarms`")
    found = review(report, watch)
    return None if found.points == len(found.criteria) else Wrong(found.to_text())
