"""The sealed models in a real browser: ask, guess, open a box, and go on without losing the score."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CODE = "from hookscope_course.scenes import SealedModels\nboxes = SealedModels()\nboxes"


def test_an_opened_box_keeps_its_points_when_the_learner_goes_on(lab: Lab) -> None:
    counted = "{0} = globals().get('{0}', 0) + 1\n".format
    lab.scratch("sealed", counted("made") + CODE, counted("came"))
    stage = lab.stage("Four sealed models")
    score, verdict = stage.locator(".sm-total"), stage.locator(".sm-verdict")
    stage.locator('[data-question="record"]').click()
    stage.get_by_label("Layer").select_option("gate")
    stage.get_by_label("Mistake").select_option("it is never called")
    stage.get_by_role("button", name="Break the seal").click()
    expect(verdict).to_contain_text("The mistake is right, the layer is not.")
    stage.get_by_label("Layer").select_option("mix")
    stage.get_by_role("button", name="Break the seal").click()
    expect(score).to_have_text("Your score: 2 of 20")
    expect(verdict).to_be_focused()
    lab.look(stage, "sealed")
    # JupyterLab would make new boxes, if the focus had gone with the button.
    lab.page.keyboard.press("Shift+Enter")
    lab.told("print(made, came, boxes.score)", "1 2 2")
