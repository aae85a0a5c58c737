"""Twenty models with one fault each, written before `diagnose` ran on any of them: it names the right cause first."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet18, vgg11
from torchvision.models.resnet import ResNet
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import hookscope

Case = tuple[nn.Module, "str | nn.Module", Tensor]
IMAGE, IDS, SEQUENCE = torch.ones(2, 3, 32, 32), torch.tensor([[1, 2, 3]]), torch.ones(2, 5, 8)


def watch(module: nn.Module, args: Any, output: Any) -> None:
    """A hook that only watches."""


def watch_backward(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    """A backward hook that only watches."""


class FusedStem(ResNet):
    """A ResNet that calls forward of its norm, as code for a fused stem does."""

    def _forward_impl(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1.forward(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def fused_stem() -> Case:
    """The norm of a ResNet is run by its forward."""
    model = FusedStem(type(resnet18().layer1[0]), [1, 1, 1, 1], num_classes=10)
    model.bn1.register_forward_hook(watch)
    return model, "bn1", IMAGE


def new_head() -> Case:
    """The head of a ResNet gets a hook, and is then replaced for fine-tuning."""
    model = resnet18()
    head = model.fc
    head.register_forward_hook(watch)
    model.fc = nn.Linear(512, 3)
    return model, head, IMAGE


class TiedGPT(nn.Module):
    """A language model whose logits come from the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 8), nn.Embedding(4, 8)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        h = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        return h @ self.lm_head.weight.T  # type: ignore[no-any-return]


def tied_head() -> Case:
    """The head of a language model is never called; its weight is multiplied by hand."""
    model = TiedGPT()
    model.lm_head.register_forward_hook(watch)
    return model, "lm_head", IDS


def hf_output() -> Case:
    """A backward hook on the body of GPT-2, which returns a ModelOutput."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8))
    model.transformer.register_full_backward_hook(watch_backward)
    return model, "transformer", IDS


class LastState(nn.Module):
    """A classifier on the last hidden state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        _, (h, _) = self.lstm(x)
        return self.head(h[-1])  # type: ignore[no-any-return]


def last_state() -> Case:
    """A backward hook on an LSTM of which only h_n is used."""
    model = LastState()
    model.lstm.register_full_backward_hook(watch_backward)
    return model, "lstm", SEQUENCE


class Detector(nn.Module):
    """A detector with a head for each scale."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleList([nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)])
        self.heads = nn.ModuleDict({"boxes": nn.Conv2d(4, 4, 1), "scores": nn.Conv2d(4, 3, 1)})

    def forward(self, image: Tensor) -> dict[str, list[Tensor]]:
        """Return boxes and scores for each scale."""
        found: dict[str, list[Tensor]] = {"boxes": [], "scores": []}
        for stage in self.backbone:
            image = stage(image).relu()
            for name, head in self.heads.items():
                found[name].append(head(image))
        return found


def detector_heads() -> Case:
    """A hook on the dict of heads of a detector."""
    model = Detector()
    model.heads.register_forward_hook(watch)
    return model, "heads", IMAGE


def vgg_gradcam() -> Case:
    """A full backward hook on a convolution of VGG, in front of an in-place ReLU."""
    model = vgg11().eval()
    model.features[3].register_full_backward_hook(watch_backward)
    return model, "features.3", IMAGE


def resnet_norm() -> Case:
    """What a norm of a ResNet returned is overwritten by the in-place ReLU."""
    model = resnet18().eval()
    model.layer1[0].bn1.register_forward_hook(watch)
    return model, "layer1.0.bn1", IMAGE


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 16, 16)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 2)

    def forward(self, image: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.encoder(self.patch(image).flatten(2).mT).mean(1))  # type: ignore[no-any-return]


def attention_projection() -> Case:
    """A hook on the output projection of an attention of torch."""
    model = Patches()
    name = "encoder.layers.0.self_attn.out_proj"
    model.get_submodule(name).register_forward_hook(watch)
    return model, name, IMAGE


def frozen_backbone() -> Case:
    """A backward hook on a frozen backbone."""
    model = resnet18().requires_grad_(False)
    model.fc = nn.Linear(512, 3)
    model.layer1.register_full_backward_hook(watch_backward)
    return model, "layer1", IMAGE


class Bottlenecked(nn.Module):
    """An autoencoder whose decoder learns alone."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(40, 6), nn.Tanh())
        self.decoder = nn.Linear(6, 40)

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction."""
        return self.decoder(self.encoder(x).detach())  # type: ignore[no-any-return]


def stop_gradient() -> Case:
    """A backward hook on an encoder whose code is detached."""
    model = Bottlenecked()
    model.encoder.register_full_backward_hook(watch_backward)
    return model, "encoder", SEQUENCE


class Probe(nn.Module):
    """A linear probe on features that are computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.probe = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> Tensor:
        """Return scores."""
        with torch.no_grad():
            features = self.backbone(image).mean((2, 3))
        return self.probe(features)  # type: ignore[no-any-return]


def linear_probe() -> Case:
    """A backward hook on a backbone that runs under no_grad."""
    model = Probe()
    model.backbone[0].register_full_backward_hook(watch_backward)
    return model, "backbone.0", IMAGE


class WithAuxiliary(nn.Module):
    """A classifier with an auxiliary head for training, as GoogLeNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc, self.aux = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2))

    def forward(self, image: Tensor) -> Any:
        """Return scores, and those of the auxiliary head in training."""
        features = self.body(image).mean((2, 3))
        return (self.fc(features), self.aux(features)) if self.training else self.fc(features)


def auxiliary_head() -> Case:
    """A hook on an auxiliary head, in eval()."""
    model = WithAuxiliary().eval()
    model.aux.register_forward_hook(watch)
    return model, "aux", IMAGE


class EarlyExit(nn.Module):
    """A network that stops when it is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.exit = nn.Linear(8, 8), nn.Linear(8, 2)
        self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of one of the two heads."""
        x = self.first(x).relu()
        early = self.exit(x)
        if early.softmax(-1).amax(-1).mean() > 0.1:
            return early  # type: ignore[no-any-return]
        return self.head(self.second(x).relu())  # type: ignore[no-any-return]


def early_exit() -> Case:
    """A hook behind the early exit that the pass takes."""
    model = EarlyExit()
    model.second.register_forward_hook(watch)
    return model, "second", SEQUENCE


class Checkpointed(nn.Module):
    """An encoder and decoder with a skip connection, with a checkpoint around the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.up = nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, image: Tensor) -> Tensor:
        """Return the image again."""
        hidden = checkpoint(self.down, image, use_reentrant=False)
        return image + self.up(hidden)  # type: ignore[no-any-return]


def checkpointed() -> Case:
    """A hook that is called twice, because a checkpoint runs its layer again."""
    model = Checkpointed()
    model.down[0].register_forward_hook(watch)
    return model, "down.0", IMAGE


class Siamese(nn.Module):
    """Two views through one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(40, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the similarity of the views."""
        return F.cosine_similarity(self.encoder(x), self.encoder(x.flip(1)))


def siamese() -> Case:
    """A hook that keeps only the last of two calls."""
    model = Siamese()
    model.encoder.register_forward_hook(watch)
    return model, "encoder", SEQUENCE


def storing_lambda() -> Case:
    """A lambda on a block of BERT that stores the output, and returns it from setdefault."""
    kept: dict[str, Any] = {"block": torch.zeros(1, 3, 8)}
    config = BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8,
    )  # fmt: skip
    model = BertModel(config).eval()
    dense = model.encoder.layer[0].output.dense
    dense.register_forward_hook(lambda module, args, output: kept.setdefault("block", output))
    return model, "encoder.layer.0.output.dense", IDS


def compiled_resnet() -> Case:
    """A hook that was registered after a compiled ResNet had run."""
    model = resnet18().eval()
    compiled = torch.compile(model, backend="eager")
    model.layer1.register_forward_hook(watch)
    return compiled, "layer1", IMAGE  # type: ignore[return-value]


class WithFallback(nn.Module):
    """A fast kernel with a fallback, as for attention."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = nn.Linear(9, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the fast layer returns, or the slow one."""
        try:
            return self.fast(x)  # type: ignore[no-any-return]
        except RuntimeError:
            return self.slow(x)  # type: ignore[no-any-return]


def fallback() -> Case:
    """A hook on a layer that raises an exception, which the model catches."""
    model = WithFallback()
    model.fast.register_forward_hook(watch)
    return model, "fast", SEQUENCE


class MeanTeacher(nn.Module):
    """A student and its copy, of which evaluation uses the copy."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
        self.teacher = copy.deepcopy(self.student)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the teacher."""
        return self.teacher(x)  # type: ignore[no-any-return]


def mean_teacher() -> Case:
    """A hook on the student, where the model calls the teacher."""
    model = MeanTeacher()
    model.student[2].register_forward_hook(watch)
    return model, "student.2", SEQUENCE


CASES: dict[Callable[[], Case], str] = {
    fused_stem: "forward_called",
    new_head: "not_in_model",
    tied_head: "weight_used",
    hf_output: "nested_output",
    last_state: "nested_output",
    detector_heads: "never_called",
    vgg_gradcam: "view_written",
    resnet_norm: "overwritten",
    attention_projection: "never_called",
    frozen_backbone: "frozen",
    stop_gradient: "detached",
    linear_probe: "no_grad",
    auxiliary_head: "other_mode",
    early_exit: "not_reached",
    checkpointed: "checkpoint",
    siamese: "called_often",
    storing_lambda: "replaced",
    compiled_resnet: "compiled",
    fallback: "swallowed",
    mean_teacher: "copy_called",
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_right_cause_is_first(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    model, layer, x = make()
    assert hookscope.diagnose(model, layer, x).cause == CASES[make]
