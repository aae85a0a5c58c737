"""The awkward models that other tools were measured on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.shared.awkward_models.building import MODELS, Do, Net, images, model

PEERS = 16
"""So many of `MODELS`, the first ones, are those that other tools were measured on."""


@model("shared conv called twice")
def _() -> Any:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), conv), images(2, 3, 6, 6)


@model("LSTM tuple")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(x)
        return self.fc(y[:, -1] + h[-1] + c[-1])

    return Net(run, lstm=nn.LSTM(4, 5, 2, batch_first=True), fc=nn.Linear(5, 3)), torch.randn(2, 3, 4)


@model("dict output")
def _() -> Any:
    heads = Do(lambda x: {"low": x[:, :2] * 2, "high": x[:, 2:], 3: "three"})
    return Net(lambda self, x: self.fc(self.heads(x)["low"]), heads=heads, fc=nn.Linear(2, 3))


@model("keyword-only inner call")
def _() -> Any:
    inner = Do(lambda *, x, scale: x * scale)
    return Net(lambda self, x: self.fc(self.inner(x=x, scale=3)), inner=inner, fc=nn.Linear(4, 3))


@model("transformer with kwargs")
def _() -> Any:
    net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    kwargs = {"tgt": torch.randn(2, 4, 8), "tgt_mask": nn.Transformer.generate_square_subsequent_mask(4)}
    return net, (torch.randn(2, 5, 8),), {**kwargs, "tgt_is_causal": True}


@model("transformer encoder in eval")
def _() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)


@model("faster r-cnn")
def _() -> Any:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build

    small = {"min_size": 48, "max_size": 64, "rpn_post_nms_top_n_test": 8, "box_detections_per_img": 5}
    net = build(weights=None, weights_backbone=None, num_classes=3, **small).eval()
    return net, [images(3, 48, 64), images(3, 40, 48)]


@model("conv, then relu in place")
def _() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)), images(2, 3, 6, 6)


@model("functional y += 1")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.a(x)
        y += 1
        return self.b(y)

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3))


@model("resnet18")
def _() -> Any:
    from torchvision.models import resnet18

    return resnet18(num_classes=4), images(2, 3, 32, 32)


@model("vgg16")
def _() -> Any:
    from torchvision.models import vgg

    # Its own classifier has 120 million weights: the same layers, narrower.
    with torch.device("meta"):
        net = vgg.VGG(nn.Identity(), num_classes=4, init_weights=False)
    net.features, net.avgpool = vgg.make_layers(vgg.cfgs["D"]), nn.AdaptiveAvgPool2d(1)
    net.classifier[0], net.classifier[3], net.classifier[6] = nn.Linear(512, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    return net, images(1, 3, 32, 32)


@model("data-dependent while loop")
def _() -> Any:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        while x.abs().sum() < 50:
            x = self.twice(x + self.fc(x).detach().clamp(-0.1, 0.1))
        return self.fc(x)

    return Net(run, fc=nn.Linear(4, 4), twice=Do(lambda x: x * 2))


@model("an unused layer")
def _() -> Any:
    return Net(lambda self, x: self.used(x), unused=nn.Linear(4, 4), used=nn.Linear(4, 3))


@model("mobilenet_v3_small")
def _() -> Any:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=4), images(2, 3, 32, 32)


@model("densenet121")
def _() -> Any:
    from torchvision.models import DenseNet

    return DenseNet(4, (6, 12, 24, 16), 8, 2, num_classes=4), images(2, 3, 32, 32)


@model("vit_b_16")
def _() -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 16, 12, 4, 16, 32, num_classes=4), images(2, 3, 32, 32)


assert len(MODELS) == PEERS
