"""Train the digit CNN reproducibly: python -m tools.training.digits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import samples

EPOCHS = 20
BATCH = 48
FARTHEST_SHIFT = 3  # pixels, in every direction


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by a random number of pixels, with a black border."""
    size, reach = images.shape[-1], FARTHEST_SHIFT
    padded = F.pad(images, (reach,) * 4)
    offsets = torch.randint(0, 2 * reach + 1, (len(images), 2), generator=generator).tolist()
    moved = [image[:, y : y + size, x : x + size] for image, (y, x) in zip(padded, offsets, strict=True)]
    return torch.stack(moved)


def train(images: Tensor, labels: Tensor) -> samples.DigitCNN:
    """Fit a DigitCNN: cross-entropy, Adam, one learning-rate cycle."""
    generator = torch.Generator().manual_seed(0)
    model = samples.digit_cnn(trained=False).train()
    steps = EPOCHS * -(-len(images) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        order = torch.randperm(len(images), generator=generator)
        for batch in torch.utils.data.BatchSampler(order.tolist(), BATCH, drop_last=False):
            loss = F.cross_entropy(model(shift(images[batch], generator)), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch:2}: mean loss {total / len(images):.4f}")
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of images whose largest logit is that of the label."""
    return int((model(images).argmax(1) == labels).sum()) / len(labels)


def main() -> None:
    """Train the model, print its accuracy on the held-out digits, and write the weights."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)  # a fixed order of summation
    torch.use_deterministic_algorithms(True)
    model = train(*samples.digits("train"))
    held_out = samples.digits("test")
    print(f"held out: {accuracy(model, *held_out):.2%} of {len(held_out.labels)}")
    generator = torch.Generator().manual_seed(1)
    print(f"held out, shifted: {accuracy(model, shift(held_out.images, generator), held_out.labels):.2%}")
    samples.WEIGHTS.parent.mkdir(exist_ok=True)
    save_file(model.state_dict(), samples.WEIGHTS)
    print(f"wrote {samples.WEIGHTS.name}, {samples.WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
