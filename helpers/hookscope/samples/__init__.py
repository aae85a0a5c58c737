"""Sample models and data without a download: images with two small CNNs, and texts with a language model."""

from hookscope.samples.handwritten import WEIGHTS, DigitCNN, Digits, digit, digit_cnn, digits, mnist
from hookscope.samples.stories import STORY_WORDS, StoryLM, story_lm, story_tokens, story_words
from hookscope.samples.textures import TEXTURES, Collage, TextureCNN, collage, texture, texture_cnn

__all__ = [
    "STORY_WORDS",
    "TEXTURES",
    "WEIGHTS",
    "Collage",
    "DigitCNN",
    "Digits",
    "StoryLM",
    "TextureCNN",
    "collage",
    "digit",
    "digit_cnn",
    "digits",
    "mnist",
    "story_lm",
    "story_tokens",
    "story_words",
    "texture",
    "texture_cnn",
]
