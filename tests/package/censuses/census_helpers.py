"""A small net to hang hooks on, a hook that fits everywhere, and what a census says of it."""

from pathlib import Path

from torch import nn

from hookscope.censuses.census import census
from tests.shared import ROOT


def do_nothing(*args, **kwargs):
    """Fit every kind of hook."""


def find_location(function):
    """Where a function is written, as an entry's location says it: relative to the folder that pytest runs in."""
    code = function.__code__
    return f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:{code.co_firstlineno}"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        return self.fc(self.bn(self.conv1(x)).flatten(1))


def list_kinds(*targets, **options):
    return [entry.kind for entry in census(*targets, **options)]
