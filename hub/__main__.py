"""The command: `python -m hub [add NAME … | passphrase NAME … | remove NAME | list | collect CHAPTER | stop]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hub.collecting import collect
from hub.people import People, slip
from hub.running import run, stop
from hub.settings import HubError, Settings

STOPPED = """
The hub has stopped. Learners' servers keep running and no work is lost: `make hub` connects to them again.
To stop the servers too: make hub-stop"""


def main(words: list[str] | None = None) -> int:
    """Do what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hub", description="Run a classroom on this machine.")
    commands = parser.add_subparsers(dest="command")
    add = commands.add_parser("add", help="create accounts; each passphrase is printed once")
    add.add_argument("name", nargs="+")
    passphrase = commands.add_parser("passphrase", help="replace passphrases; the old ones stop working")
    passphrase.add_argument("name", nargs="+")
    remove = commands.add_parser("remove", help="remove an account; you are asked whether to delete its home")
    remove.add_argument("name")
    remove.add_argument("--now", action="store_true", help="even if the learner has running processes")
    commands.add_parser("list", help="list the learners")
    collects = commands.add_parser("collect", help="collect everyone's notebook of a chapter for `make grade`")
    collects.add_argument("chapter", help="its number, for example 02")
    collects.add_argument("--to", type=Path, required=True, help="the folder that `make nbgrader` wrote")
    commands.add_parser("stop", help="stop the hub and everything that learners run")
    options = parser.parse_args(words)
    try:
        settings = Settings.of(os.environ)
        if options.command is None:
            run(settings)
            print(STOPPED)
            return 0
        if options.command == "list":
            print("\n".join(People(settings).names()) or "There are no learners yet: python -m hub add anna ben …")
            return 0
        if os.getuid() != 0:
            raise HubError(f"You must be root: sudo {sys.executable} -m hub {options.command}")
        if options.command == "stop":
            print("\n".join(stop(settings)) or "No part of this hub is running.")
        elif options.command == "collect":
            print("\n".join(collect(settings, options.chapter, options.to.absolute())) or "There are no learners yet.")
        elif options.command == "remove":
            _remove(People(settings), options.name, options.now)
        else:
            return _slips(People(settings), options.command, options.name, _address(settings))
    except HubError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _slips(people: People, command: str, names: list[str], address: str) -> int:
    """Print a slip for each; who cannot get one does not hold up the others."""
    failed = 0
    for name in names:
        try:
            print(slip(name, people.add(name) if command == "add" else people.renew(name), address), flush=True)
        except HubError as error:
            failed = 1
            print(error, file=sys.stderr)
    return failed


def _remove(people: People, name: str, now: bool) -> None:
    home = people.find(name).pw_dir
    question = f"Also delete {home} and everything that {name} wrote? Type {name} to confirm: "
    try:
        delete = input(question).strip() == name
    except EOFError:
        delete = False
        print()
    people.remove(name, delete, now)
    print(f"{name} was removed." + ("" if delete else f" Only root can open {home}, which was kept."))


def _address(settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme, usual = ("https", 443) if settings.tls_key else ("http", 80)
    return f"{scheme}://{host}" + (f":{settings.port}" if settings.port != usual else "")


if __name__ == "__main__":
    sys.exit(main())
