"""The travel map: each station is torch's own doing, nothing is told before it is visited, and guesses stay."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from hookscope import census
from hookscope_course import certificate
from hookscope_course.figures import TravelMap
from hookscope_course.figures.travel_map.figure import place_stations
from hookscope_course.figures.travel_map.stations import FATES, HOOKED, PLAIN, STATIONS, Outcome, make_net, outcome_of

EXPECTED = {
    "deepcopy": "stays",
    "state_dict": "left",
    "prune": "follows",
    "compile": "follows",
    "export": "baked",
    "quantize": "stays",
    "checkpoint": "follows",
    "autocast": "follows",
    "scaler": "follows",
}


@pytest.mark.parametrize("name", STATIONS)
def test_the_sentence_at_a_station_fits_what_torch_does(name: str) -> None:
    """The reasons are written for these fates; another torch may need other words."""
    assert outcome_of(name).fate == EXPECTED[name]


def test_an_outcome_is_one_of_four_fates() -> None:
    outcomes = [
        Outcome(HOOKED, 1, PLAIN),
        Outcome(HOOKED, 1, HOOKED),
        Outcome(PLAIN, 0, PLAIN),
        Outcome(HOOKED, 0, HOOKED),
    ]
    assert [each.fate for each in outcomes] == [*FATES]
    net = make_net()
    assert net(torch.tensor([[2.0, 5.0]])).item() == PLAIN
    assert len(census(net, include_global=False)) == 0


def test_a_gray_line_leads_to_another_module() -> None:
    assert {name for name, station in STATIONS.items() if station.is_same} == {
        "prune",
        "compile",
        "checkpoint",
        "autocast",
        "scaler",
    }
    fast = cast(Any, torch.compile(net := nn.Sequential(nn.ReLU()), backend="eager"))
    assert fast._orig_mod[0] is net[0]


def test_a_map_tells_the_kind_of_a_line_only_after_the_visit() -> None:
    journey = TravelMap()
    assert "blue" not in journey.alt
    x = {card[0] for card in place_stations(narrow=True)["cards"].values()}
    assert len(x) == 1, "no card is set apart before its guess"


def test_a_visit_tells_one_station_and_counts_guesses() -> None:
    journey = TravelMap()
    journey.guesses = {"export": "baked", "prune": "left"}
    said = repr(journey.visit("export", "prune"))
    assert "`export`: only ×10 stays, as you guessed. It returns 60, with 0 calls of the hook" in said
    assert "`prune`: fires, handle works, not as you guessed (left behind)." in said
    assert STATIONS["prune"].why not in said, "that is for the lesson, and for the map"
    assert "Your map: `export`: only ×10 stays; `prune`: fires, handle works. Not visited yet: `deepcopy`, " in said
    assert journey.visit("export").kind == "right"
    assert journey.visit("prune").kind == "wrong"
    assert TravelMap().visit("prune").kind == "note"
    journey.visit("export")
    assert journey.visited == ["export", "prune"]
    assert journey.right == ["export"]
    assert journey.summary().startswith(
        "The travel map: 2 of 9 stations visited, 1 of 2 guesses right\nexport: only ×10"
    )
    known = {row["station"]: row["returns"] for row in journey.numbers()}
    assert (known["export"], known["prune"], known["deepcopy"]) == (60, 60, "?")
    assert journey.at == "export"
    journey.visit(*STATIONS)
    assert journey.png != TravelMap().png


def test_a_station_of_training_is_asked_about_in_the_chapter() -> None:
    journey = TravelMap()
    said = repr(journey.visit("checkpoint"))
    assert "`checkpoint`: fires, handle works; called 2×, once in backward()." in said
    assert outcome_of("checkpoint").calls == 2
    assert journey.visit("checkpoint", "scaler").kind == "note", "there is no guess to be right"
    assert journey.numbers()[-1]["the hook"] == "fires, handle works"
    with pytest.raises(ValueError, match="the chapter asks about 'autocast', and the map does not"):
        journey.guesses = {"autocast": "follows"}


def test_the_certificate_counts_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hookscope_course.practice.guess_results.read_outcomes", lambda: {"18.1": "first", "18.2": "second"}
    )
    monkeypatch.setattr(
        "hookscope_course.learner.progress.read_solved", lambda copy: {"11.1": "today", "18.2": "today"}
    )
    journey = TravelMap()
    journey.visit("prune")
    found = certificate(journey)
    rows = {row["part"]: row for row in found.rows}
    assert str(rows["Debug and build"]["guesses right at once"]).startswith("1 of ")
    assert str(rows["Debug and build"]["exercises solved"]).startswith("2 of ")
    assert found.caption.startswith("Your journey through hookscope: 1 of ")
    assert "prune: fires, handle works" in found.alt
    assert [*rows] == ["Debug and build"], "parts that were not begun do not count"
