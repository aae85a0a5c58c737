"""Models that make it hard to see what flowed through them, and a naive reference that sees it right.

`MODELS` holds functions that build `(model, args, kwargs)`, the same numbers every time. The reference puts a plain
forward hook on every leaf that clones, at the moment the leaf returns, all there is in its output.
"""

# isort: off
from tests.shared.awkward_models.building import MODELS, Case, Do, Net, Own, Pair, Result, seed
from tests.shared.awkward_models.reference import (
    RAISED,
    Call,
    cloning,
    deep_clone,
    difference,
    loss_of,
    tensor_map,
    tensors_in,
)

# Each enters its models in MODELS; in this order, so that the first ones are those of PEERS.
from tests.shared.awkward_models.peers import PEERS
from tests.shared.awkward_models import outputs, overwrites, calls
# isort: on

LARGE = ("densenet121", "faster r-cnn", "mobilenet_v3_small", "resnet18", "vgg16", "vit_b_16")
FUSED = ("transformer encoder in eval",)
"""Any hook on a child keeps these from a fused path, whose last bits may differ."""

__all__ = [
    "FUSED",
    "LARGE",
    "MODELS",
    "PEERS",
    "RAISED",
    "Call",
    "Case",
    "Do",
    "Net",
    "Own",
    "Pair",
    "Result",
    "calls",
    "cloning",
    "deep_clone",
    "difference",
    "loss_of",
    "outputs",
    "overwrites",
    "seed",
    "tensor_map",
    "tensors_in",
]
