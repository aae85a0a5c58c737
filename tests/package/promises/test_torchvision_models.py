"""What `capture` keeps is what a clone holds, for every family of models of torchvision."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tests.shared.awkward_models import Case
from tests.shared.capture_runs import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, checkpoints and the like

FAMILIES: dict[str, tuple[int, ...]] = {
    # Shape of the input, the smallest that works; for detection of the one image in a list.
    "squeezenet1_1": (2, 3, 33, 33),
    "shufflenet_v2_x0_5": (2, 3, 32, 32),
    "mnasnet0_5": (2, 3, 32, 32),
    "lraspp_mobilenet_v3_large": (2, 3, 32, 32),
    "alexnet": (1, 3, 64, 64),
    "convnext_tiny": (1, 3, 32, 32),
    "densenet169": (2, 3, 32, 32),
    "efficientnet_b0": (2, 3, 32, 32),
    "efficientnet_v2_s": (2, 3, 32, 32),
    "googlenet": (2, 3, 64, 64),
    "inception_v3": (2, 3, 299, 299),
    "maxvit_t": (1, 3, 224, 224),
    "mobilenet_v2": (2, 3, 32, 32),
    "mobilenet_v3_large": (2, 3, 32, 32),
    "regnet_x_400mf": (2, 3, 32, 32),
    "regnet_y_400mf": (2, 3, 32, 32),
    "resnet50": (2, 3, 32, 32),
    "resnext50_32x4d": (2, 3, 32, 32),
    "wide_resnet50_2": (2, 3, 32, 32),
    "swin_t": (1, 3, 32, 32),
    "swin_v2_t": (1, 3, 64, 64),
    "vgg11_bn": (1, 3, 32, 32),
    "vit_b_32": (1, 3, 224, 224),
    "deeplabv3_mobilenet_v3_large": (2, 3, 32, 32),
    "deeplabv3_resnet50": (2, 3, 32, 32),
    "fcn_resnet50": (2, 3, 32, 32),
    "fasterrcnn_resnet50_fpn": (3, 64, 64),
    "fasterrcnn_mobilenet_v3_large_fpn": (3, 64, 64),
    "fcos_resnet50_fpn": (3, 64, 64),
    "keypointrcnn_resnet50_fpn": (3, 64, 64),
    "maskrcnn_resnet50_fpn": (3, 64, 64),
    "retinanet_resnet50_fpn": (3, 64, 64),
    "ssd300_vgg16": (3, 64, 64),
    "ssdlite320_mobilenet_v3_large": (3, 64, 64),
    "r3d_18": (1, 3, 4, 32, 32),
    "mc3_18": (1, 3, 4, 32, 32),
    "r2plus1d_18": (1, 3, 4, 32, 32),
    "s3d": (1, 3, 16, 224, 224),
    "swin3d_t": (1, 3, 4, 32, 32),
    "raft_small": (1, 3, 128, 128),
}

FAST = 4


def torchvision_model(name: str) -> Case:
    from torchvision import models

    shape = FAMILIES[name]
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    detection = builder.__module__.startswith("torchvision.models.detection")
    if detection:
        options["num_classes"] = 2 if "keypoint" in name else 3
        if not name.startswith("ssd"):
            options |= {"min_size": 64, "max_size": 64}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    torch.manual_seed(0)
    model = builder(**options)
    if detection:
        return model.eval(), ([torch.rand(shape)],), {}
    images = torch.rand(shape)
    return model, (images, images.flip(-1)) if name.startswith("raft") else (images,), {}


@pytest.mark.parametrize("mode", ["no_grad", "grad"])
@pytest.mark.parametrize(
    "name", [*list(FAMILIES)[:FAST], *(pytest.param(name, marks=pytest.mark.slow) for name in list(FAMILIES)[FAST:])]
)
def test_torchvision(name: str, mode: str) -> None:
    assert not compare_runs(lambda: torchvision_model(name), mode, gradients=mode == "grad", inputs=False)
