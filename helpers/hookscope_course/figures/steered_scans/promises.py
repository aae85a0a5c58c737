"""What `SteeredScans` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

import torch

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.steered_scans.figure import SteeredScans

PUSH = torch.linspace(-0.01, 0.01, 64)
SCANS = torch.cat([samples.digit(5), samples.digit(1)])

PROMISES: dict[str, Promises] = {
    "SteeredScans": Promises(
        lambda net: SteeredScans(net, "block3", {"a": torch.ones(32, 7, 7), "b": torch.zeros(1)}, SCANS, 8),
        {"push": "b", "step": 20},
        refused=(("step", 21, "choose from 0 to 20"), ("push", "nowhere", "choose from 'a', 'b'")),
        calls=(
            (lambda _: SteeredScans(samples.digit_cnn(), "block3", {}, SCANS, 8), "there is no push"),
            (lambda _: SteeredScans(samples.digit_cnn(), "block9", {"a": PUSH}, SCANS, 8), "block9"),
            (lambda _: SteeredScans(samples.digit_cnn(), "block3", {"a": torch.ones(3)}, SCANS, 8), "size of tensor"),
        ),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SteeredScans": Controls(
        "Scans that are pushed",
        """
from hookscope import samples
from hookscope_course.figures import SteeredScans
import torch
net, (images, labels) = samples.digit_cnn(), samples.digits("train")
with torch.no_grad():
    outputs = net.block3(net.block2(net.block1(images)))
push = outputs[labels == 8].mean(0) - outputs[labels == 3].mean(0)
test = samples.digits("test")
pushes = {"toward 8": push, "nothing": 0 * push}
scans = SteeredScans(net, "block3", pushes, test.images[test.labels == 3][:24], 8, marked=[0])
scans
""",
        ("button:has-text('nothing')",),
        "scans.push, scans.step",
        "nothing 0",
        "input[type=range]",
        ("End", "ArrowLeft"),
        "toward 8 19",
    ),
}
