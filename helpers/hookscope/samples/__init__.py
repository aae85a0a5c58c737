"""Real pictures and a small trained CNN to hook into, without a download: scanned digits, `DigitCNN`, MNIST."""

from hookscope.samples.handwritten import WEIGHTS, DigitCNN, Digits, digit, digit_cnn, digits, mnist

__all__ = ["WEIGHTS", "DigitCNN", "Digits", "digit", "digit_cnn", "digits", "mnist"]
