"""The exercise of chapter 20: a report on a training run that is lost, its watchdog and its repair; seven points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope_course.chapters.ch20_training_runs import Update
from hookscope_course.chapters.ch20_watchdog_report import Watch, review
from hookscope_course.practice import Wrong, blind_to


@blind_to(swallows_errors="a layer raises in the `with` block, and point 6 sees to it that this comes through")
def check_q1(report: Mapping[str, Any] | object, watch: Watch | object, repair: Update | object) -> Wrong | None:
    if not isinstance(report, Mapping):
        return Wrong(f"`report` is {report!r}; it is a dict with the three fields of the question")
    if not callable(watch):
        return Wrong(f"`watch` is {watch!r}; write a function for `with watch(model) as alarms`")
    if not callable(repair):
        return Wrong(f"`repair` is {repair!r}; write a function that returns the new weight")
    found = review(report, watch, repair)
    return None if found.points == len(found.criteria) else Wrong(found.to_text())
