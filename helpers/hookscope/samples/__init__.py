"""Sample models and data: small CNNs, a small language model, and three real networks for photographs and English."""

from hookscope.samples.efficientnet import PHOTO_CLASSES, PhotoCNN, has_photo_weights, photo_cnn
from hookscope.samples.handwritten import WEIGHTS, DigitCNN, Digits, digit, digit_cnn, digits
from hookscope.samples.minilm import has_sentence_weights, sentence_encoder
from hookscope.samples.photos import PHOTOS, denormalize, photo
from hookscope.samples.smollm2 import english_lm, has_english_weights
from hookscope.samples.stories import STORY_WORDS, StoryLM, story_lm, story_tokens, story_words
from hookscope.samples.textures import TEXTURES, Collage, TextureCNN, collage, texture, texture_cnn

__all__ = [
    "PHOTOS",
    "PHOTO_CLASSES",
    "STORY_WORDS",
    "TEXTURES",
    "WEIGHTS",
    "Collage",
    "DigitCNN",
    "Digits",
    "PhotoCNN",
    "StoryLM",
    "TextureCNN",
    "collage",
    "denormalize",
    "digit",
    "digit_cnn",
    "digits",
    "english_lm",
    "has_english_weights",
    "has_photo_weights",
    "has_sentence_weights",
    "photo",
    "photo_cnn",
    "sentence_encoder",
    "story_lm",
    "story_tokens",
    "story_words",
    "texture",
    "texture_cnn",
]


def __dir__() -> list[str]:
    """List the public names."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
