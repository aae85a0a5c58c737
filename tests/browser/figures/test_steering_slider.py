"""The steering slider and the grid of the cache in a real browser: mouse, keyboard, both themes, a narrow page."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def test_the_learner_finds_the_cliff(figures: FigurePage) -> None:
    stage = draw(figures, "SteeringSlider")
    say, new, bar = stage.locator(".sv-say"), stage.locator(".sv-new"), stage.get_by_role("slider", name="strength")
    points = "line => (line.getAttribute('points').match(/,/g) ?? []).length"
    curve = stage.locator("polyline.sv-wanted")
    expect(new).to_have_text("sleeps . the friend")
    expect(say).to_have_text("At strength 0 it writes “sleeps”. Plural verbs have 1 %.")
    assert curve.evaluate(points) == 1, "the curve is not given away"

    bar.focus()
    for _ in range(4):
        bar.press("ArrowRight")
    expect(new).to_have_text(re.compile("^sleep "))
    expect(say).to_have_text("At strength 1 it writes “sleep”. That is what you want: plural verbs have 94 %.")
    expect(stage.locator(".sv-verdict")).to_have_text("plural verbs")
    assert curve.evaluate(points) == 5
    figures.told("print(slider.strength, slider.explored['every token'])", "1.0 [8, 12]")
    bar.press("End")
    expect(new).to_have_text("gave gave gave gave")
    expect(stage.locator(".sv-verdict")).to_have_text("another word")
    expect(stage.locator(".sv-control")).to_contain_text(
        "One of the random pushes, as long as yours: the baker near the friend"
    )

    stage.get_by_role("button", name="baker only").click()
    expect(stage.locator(".sv-verdict")).to_have_text("plural verbs")
    assert curve.evaluate(points) == 33, "from 0, where nothing was changed, to 8"
    bar.press("Home")
    figures.told("print(slider.place, slider.strength, slider.explored['baker only'])", "baker only -2.0 [0, 40]")
    figures.kernel("slider.place, slider.strength = 'every token', 2")
    expect(say).to_have_text(re.compile("^At strength 2 it writes"))


def test_cells_are_marked_and_the_cache_shows_what_stays(figures: FigurePage) -> None:
    stage = draw(figures, "CacheGrid")
    say, hit = stage.locator(".sc-say"), stage.locator("button.kv-hit")
    stage.get_by_role("button", name="output[:, -1]").click()
    expect(hit).to_have_count(0)
    stage.get_by_role("button", name="with the cache, call 1, token 4", exact=True).click()
    figures.page.keyboard.press("ArrowDown")  # the nearest cell below is the new token
    figures.page.keyboard.press("Space")
    stage.get_by_role("button", name="without it, call 2, token 4", exact=True).click()
    figures.told("print(grid.change, grid.marks)", "output[:, -1] ['0,0,4', '0,1,5', '1,1,4']")
    stage.get_by_role("button", name="Run generate()").click()
    expect(hit).to_have_count(8)
    expect(stage.locator(".kv-why")).to_have_text("2 of 8 found, 1 marked that is not hit.")
    expect(say).to_contain_text("The two runs compute different scores.")
    expect(stage.locator(".kv-grid .kv-stays")).to_have_count(1 + 2 + 3)

    stage.get_by_role("button", name="output[:, 3]", exact=True).click()
    expect(hit).to_have_count(0)
    stage.get_by_role("button", name="Run generate()").click()
    expect(stage.locator(".kv-error")).to_have_text("IndexError")
    expect(stage.locator(".kv-lost:visible")).to_have_count(2)
    figures.told("print(grid.ran, grid.hits)", "True {'with the cache': [[3]], 'without it': [[3], [3], [3], [3]]}")
    figures.kernel("grid.change = 'output'; _ = grid.run()")
    expect(hit).to_have_count(8 + 26)


def test_scans_turn_one_after_the_other(figures: FigurePage) -> None:
    stage = draw(figures, "SteeredScans")
    say, tiles, bar = stage.locator(".sc-say"), stage.locator(".st-tile"), stage.get_by_role("slider", name="station")
    none = "Nothing is added to block3: the model reads 24 as 3. Repaired: 0 of 1. Changed: 0 of the other 23."
    expect(say).to_have_text(none)
    expect(stage.locator(".st-start.st-tile")).to_have_count(24)
    bar.focus()
    bar.press("End")
    figures.told("print(scans.strength, scans.read.count(8))", "1.0 24")
    whole = "block3 + 1 · (toward 8): the model reads 24 as 8. Repaired: 1 of 1. Changed: 23 of the other 23."
    expect(say).to_have_text(whole)
    expect(stage.locator(".st-mended.st-tile")).to_have_text(["✓ 8"])
    stage.get_by_role("button", name="nothing").click()
    expect(stage.locator(".st-start.st-tile")).to_have_count(24)
    expect(tiles.first).to_have_class(re.compile("st-marked"))
    bar.press("Home")
    figures.told("print(scans.push, scans.step)", "nothing 0")
    figures.kernel("scans.push, scans.step = 'toward 8', 20")
    expect(stage.locator(".st-goal.st-tile")).not_to_have_count(0)
    stage.get_by_role("button", name="Back").focus()
    figures.page.keyboard.press("ArrowLeft")
    figures.told("print(scans.step)", "19")
