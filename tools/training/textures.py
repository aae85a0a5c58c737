"""Train the texture CNN reproducibly: python -m tools.training.textures.

It needs scikit-image, which ships the photographs. One square of each is held out from training. hookscope ships these
squares, so only this script needs scikit-image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import samples
from hookscope.samples.textures import SIDE, TEXTURE_PICTURES, TEXTURE_WEIGHTS, TEXTURES, texture_cnn

STEPS, BATCH = 400, 40
PATCH = 64  # pixels
SHARE_MIXED = 0.5  # of the batches show two materials side by side, so that the CNN must use local evidence


def photographs() -> dict[str, Tensor]:
    """Read the photographs as gray levels, uint8 (H, W)."""
    from skimage import data

    def gray(image: Tensor) -> Tensor:
        weights = torch.tensor([299, 587, 114])
        return image if image.ndim == 2 else ((image.long() * weights).sum(-1) // 1000).to(torch.uint8)

    raw = {"brick": data.brick(), "grass": data.grass(), "gravel": data.gravel()}
    raw |= {"fur": data.chelsea(), "stars": data.hubble_deep_field()}
    return {name: gray(torch.from_numpy(raw[name].copy())) for name in TEXTURES}


def split(picture: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the held-out square at the bottom right, and the two parts that remain: above it and beside it."""
    height, width = picture.shape
    held_out = picture[height - SIDE :, width - SIDE :]
    return held_out, [picture[: height - SIDE], picture[:, : width - SIDE]]


def patches(parts: dict[str, list[Tensor]], labels: Tensor, generator: torch.Generator) -> Tensor:
    """Cut a random patch for each label, with a random rotation, reflection, contrast and brightness."""

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    found = []
    for label in labels.tolist():
        part = parts[TEXTURES[label]][pick(2)]
        row, column = pick(part.shape[0] - PATCH + 1), pick(part.shape[1] - PATCH + 1)
        patch = part[row : row + PATCH, column : column + PATCH].float() / 255
        patch = torch.rot90(patch.flip(0) if pick(2) else patch, pick(4))
        contrast, light = torch.rand(2, generator=generator).tolist()
        found.append(((patch - patch.mean()) * (0.7 + 0.6 * contrast) + patch.mean() + 0.2 * light - 0.1).clamp(0, 1))
    return torch.stack(found)[:, None]


def train(parts: dict[str, list[Tensor]]) -> samples.TextureCNN:
    """Fit a TextureCNN: cross-entropy, AdamW, one learning-rate cycle."""
    generator = torch.Generator().manual_seed(0)
    model = texture_cnn(trained=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=STEPS)
    for step in range(1, STEPS + 1):
        labels = torch.randint(len(TEXTURES), (BATCH,), generator=generator)
        images, wanted = patches(parts, labels, generator), F.one_hot(labels, len(TEXTURES)).float()
        if float(torch.rand(1, generator=generator)) < SHARE_MIXED:
            images = torch.cat([images, images.roll(1, 0)], -1)
            wanted = (wanted + wanted.roll(1, 0)) / 2
        loss = F.cross_entropy(model(images), wanted)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step:3}: loss {loss.item():.4f}")
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, held_out: dict[str, Tensor]) -> float:
    """Return the accuracy on 64×64 patches of the held-out squares, 16 pixels apart."""
    right = total = 0
    for label, name in enumerate(TEXTURES):
        tiles = held_out[name].float().unfold(0, PATCH, 16).unfold(1, PATCH, 16).reshape(-1, 1, PATCH, PATCH) / 255
        right += int((model(tiles).argmax(1) == label).sum())
        total += len(tiles)
    return right / total


def main() -> None:
    """Train the model, print its accuracy on the held-out squares, and write the weights and the squares."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)  # a fixed order of summation
    torch.use_deterministic_algorithms(True)
    both = {name: split(picture) for name, picture in photographs().items()}
    model = train({name: parts for name, (_, parts) in both.items()})
    held_out = {name: square.contiguous() for name, (square, _) in both.items()}
    print(f"held out: {accuracy(model, held_out):.2%} of patches")
    save_file(held_out, TEXTURE_PICTURES)
    save_file(model.state_dict(), TEXTURE_WEIGHTS)
    for file in (TEXTURE_PICTURES, TEXTURE_WEIGHTS):
        print(f"wrote {file.name}, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
