"""Real pictures and two small trained CNNs to hook into, without a download: digits, MNIST, photographs."""

from hookscope.samples.handwritten import WEIGHTS, DigitCNN, Digits, digit, digit_cnn, digits, mnist
from hookscope.samples.textures import TEXTURES, Collage, TextureCNN, collage, texture, texture_cnn

__all__ = [
    "TEXTURES",
    "WEIGHTS",
    "Collage",
    "DigitCNN",
    "Digits",
    "TextureCNN",
    "collage",
    "digit",
    "digit_cnn",
    "digits",
    "mnist",
    "texture",
    "texture_cnn",
]
