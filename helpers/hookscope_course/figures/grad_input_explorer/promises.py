"""What `GradInputExplorer` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from hookscope_course.figures.grad_input_explorer.figure import GradInputExplorer
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "GradInputExplorer": Promises(
        lambda _: GradInputExplorer(),
        {"layer": "Conv2d", "bias": False},
        refused=(
            ("layer", "Linaer", "no layer 'Linaer'. Choose one of 'Linear'"),
            ("layer", "", "no layer ''"),
            ("inplace", True, "These layers have it: 'ReLU', 'Dropout'"),
            ("input_shape", (3, 5), "Pass (3, 4) or"),
            ("input_shape", (0, 4), "positive integers only"),
            ("input_shape", ("3", 4), "positive integers only"),
        ),
        calls=(
            (lambda _: GradInputExplorer(shape=(3,)), "no attribute 'shape'"),
            (lambda _: GradInputExplorer(nn.ReLU(), torch.ones(2)), "requires a gradient"),
            (lambda _: GradInputExplorer(cast(Any, nn.ReLU), torch.ones(2)), "not the class"),
        ),
        secret=lambda _: ("They differ", "same here"),
        reveal={"answers": {'["Linear", [3, 4], true, false, true]': ["same", "different"]}},
        together=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "GradInputExplorer": Controls(
        "The graph with both hooks in it",
        """
from hookscope_course.figures import GradInputExplorer
explorer = GradInputExplorer()
explorer
""",
        ("button:text-is('different')",),
        "explorer.layer, explorer.bias, explorer.answers",
        "Linear True {'[\"Linear\", [3, 4], true, false, true]': ['different', 'different']}",
        "input[type=checkbox] >> nth=0",
        ("Space",),
        "Linear False {}",
        pane=False,
        alone=False,
    ),
}
