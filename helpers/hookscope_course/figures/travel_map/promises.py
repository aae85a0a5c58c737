"""What `TravelMap` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope_course.figures.kit.promises import Controls, Layout, Promises
from hookscope_course.figures.travel_map import figure as travel_map
from hookscope_course.figures.travel_map.figure import TravelMap
from hookscope_course.figures.travel_map.stations import FATES, STATIONS


def list_cards(layout: Mapping[str, Any]) -> Layout:
    """Return the cards of the stations, and the one in the middle."""
    cards = [layout["home"], *layout["cards"].values()]
    return layout["size"], [(x + w / 2, y + h / 2, w, h) for x, y, w, h in cards]


PROMISES: dict[str, Promises] = {
    "TravelMap": Promises(
        lambda _: TravelMap(),
        {"guesses": {"prune": "left"}, "visited": ["prune"], "at": "prune"},
        refused=(
            ("guesses", {"prune": "gone"}, "there is no fate 'gone'"),
            ("guesses", {"tokyo": "left"}, "there is no station 'tokyo'"),
            ("at", "tokyo", "there is no station 'tokyo'"),
        ),
        calls=((lambda each: each.visit("tokyo"), "there is no station 'tokyo'"),),
        secret=lambda _: (*(short for short, _ in FATES.values()), r"handle\.remove\(\)"),
        reveal={"visited": [*STATIONS]},
        final=(("guesses", {"prune": "follows"}, "was visited, so its guess stays"),),
        boxes=lambda narrow: list_cards(travel_map.place_stations(narrow=narrow)),
    ),
}

CONTROLS: dict[str, Controls] = {
    "TravelMap": Controls(
        "The travel map",
        """
from hookscope_course.figures import TravelMap
journey = TravelMap()
journey
""",
        (".tm-fates button >> nth=1",),
        "journey.at, journey.guesses",
        "state_dict {'deepcopy': 'stays'}",
        "[role=button][tabindex='0'], button[tabindex='0']",
        ("ArrowRight", "Enter", "Enter"),
        "quantize {'export': 'follows'}",
    ),
}
