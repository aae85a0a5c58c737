"""What a learner plays with in a notebook: pick a layer, step through hooks, edit an input, follow a gradient."""

from __future__ import annotations

from hookscope.widgets.grad_input import GradInputExplorer
from hookscope.widgets.gradients import GradientPlayground
from hookscope.widgets.picker import LayerPicker
from hookscope.widgets.player import OrderPlayer
from hookscope.widgets.pre_hook import PreHookPlayground
from hookscope.widgets.quiz import OrderQuiz

__all__ = ["GradInputExplorer", "GradientPlayground", "LayerPicker", "OrderPlayer", "OrderQuiz", "PreHookPlayground"]
