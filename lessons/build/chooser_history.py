"""Run every row of the chooser on releases of torch, to know since when it does what it says.

    python -m lessons.build.chooser_history               the rows that changed, on every release of `make history`
    python -m lessons.build.chooser_history 2.0.0 2.16.0  every row, on these releases only

All rows on all releases take a quarter of an hour, a changed row a few minutes. What came of it goes to
lessons/91_chooser/since.json, after each release. A test holds the `since` of each row to it. Runs where Python can
fork: on Linux and macOS.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from typing import Any

from hookscope_course.history import records
from lessons.build import lesson_source
from tools import history as make

RECORDS = lesson_source.data_file("since.json")
# Runs on every Python since 3.7. Each row gets a process of its own, which an old torch may kill or hold for ever; to
# import torch each time would take most of the time.
_RUNNER = """
import contextlib, io, json, multiprocessing, sys, traceback, warnings
import torch

def run(snippet, answer):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(snippet, "<snippet>", "exec"), vars(sys.modules["__main__"]))  # where the compiler looks
        answer.send(said.getvalue().strip())
    except BaseException as error:
        answer.send(traceback.format_exception_only(type(error), error)[-1].strip())

warnings.simplefilter("ignore")
fork, found = multiprocessing.get_context("fork"), {}
for want, snippet in json.load(sys.stdin):
    ours, theirs = fork.Pipe(False)
    process = fork.Process(target=run, args=(snippet, theirs))
    process.start()
    theirs.close()
    try:
        found[want] = ours.recv() if ours.poll(120) else "it has not ended after 120 seconds"
    except EOFError:
        process.join()
        found[want] = "it killed Python: exit status %s" % process.exitcode
    process.terminate()
    process.join()
print(json.dumps(found))
"""


def list_rows() -> list[dict[str, Any]]:
    """Return the rows of the chooser that need nothing but torch."""
    return [row for row in lesson_source.rows_of("chooser.toml", "want") if "hookscope" not in row["snippet"]]


def hash_row(row: dict[str, Any]) -> str:
    """Identify what a row runs, and what it has to print; comments run nothing."""
    runs = "".join(line for line in row["snippet"].splitlines(keepends=True) if not line.startswith("#"))
    return hashlib.sha256(f"{runs}{row['prints']}".encode()).hexdigest()[:12]


def read_records() -> dict[str, dict[str, Any]]:
    """Return the records: for each want what was run, and what it printed where that was not right, by release."""
    found: dict[str, dict[str, Any]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return found


def store(release: str, outputs: dict[str, str]) -> None:
    """Write down what the rows printed on one release: "right", or what it was instead, in a line."""
    known = read_records() if RECORDS.exists() else {}
    found = {}
    for row in list_rows():
        want, now = row["want"], hash_row(row)
        record = known.get(want, {})
        on = record["on"] if record.get("ran") == now else {}  # what another snippet did tells nothing of this one
        if want in outputs:
            on[release] = "right" if outputs[want] == row["prints"] else make.one_line(outputs[want])[:100]
        found[want] = {"ran": now, "on": {each: on[each] for each in sorted(on, key=records.parse_release)}}
    RECORDS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def find_first_right(on: dict[str, str]) -> str:
    """Return the release since which all are right that were tried; "" if the last one is not.

    Example:
        >>> find_first_right({"1.1.0": "right", "1.2.0": "AttributeError", "2.0.0": "right", "2.1.0": "right"})
        '2.0.0'

    """
    first = ""
    for release in reversed(on):
        if on[release] != "right":
            break
        first = release
    return first


def list_unknown_rows(release: str) -> list[dict[str, Any]]:
    """Return the rows that have not been run on this release as they are now."""
    known = read_records() if RECORDS.exists() else {}
    ran = {want: record["ran"] for want, record in known.items() if release in record["on"]}
    return [row for row in list_rows() if ran.get(row["want"]) != hash_row(row)]


def main(asked: list[str]) -> int:
    """Run the rows on the releases asked for, or the changed ones on all; returns 1 if one could not be installed."""
    if "fork" not in multiprocessing.get_all_start_methods():
        sys.exit("The rows run in forked processes, which this system does not have: use Linux, macOS or WSL.")
    uv, failed = make.find_uv(), 0
    for release in asked or [*make.RELEASES]:
        python = make.RELEASES.get(release, make.NEWEST_PYTHON)
        wanted = list_rows() if asked else list_unknown_rows(release)
        if not wanted:
            print(f"torch {release}: no row has changed", flush=True)
            continue
        given = json.dumps([[row["want"], row["snippet"]] for row in wanted])
        try:
            with make.environment(uv, release, python) as (interpreter, settings):
                outputs = json.loads(make.call([interpreter, "-c", _RUNNER], settings, given=given).splitlines()[-1])
        except make.NotInstalledError as error:
            failed += 1
            print(f"torch {release}: {error}", flush=True)
            continue
        store(release, outputs)
        right = sum(outputs[row["want"]] == row["prints"] for row in wanted)
        print(f"torch {release} on Python {python}: {right} of {len(outputs)} right", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
