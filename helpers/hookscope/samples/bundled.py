"""Read the weights and images that come with the package, and check that they are whole."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from torch import Tensor

from hookscope.extras import optional_import

SHA256 = {
    "digit_cnn.safetensors": "a27d4aefa07e2bad414e20d03dfaceb29b39012b6d5c7e971ef871031d714b69",
    "story_lm.safetensors": "713660ec70bdd16b946c3541952060edd442d326ec7bb9d307939a5c8cc4b989",
    "texture_cnn.safetensors": "ba81951d6e70b22a072a1b2a60e60b085959d6773f2dcd265d74171ecfe7652b",
    "textures.safetensors": "6c51d03df1295a9bc112e4f8ea3d28be9d83ea48fde633aaa4e6ebda8f8413b8",
}


def load_bundled(file: Path, purpose: str) -> dict[str, Tensor]:
    """Load a bundled file.

    Args:
        file: one of those in `SHA256`.
        purpose: what the tensors are for, as in "a trained DigitCNN".

    Raises:
        ModuleNotFoundError: safetensors is not installed.
        RuntimeError: the file is missing or has other bytes than it had when hookscope was released.

    """
    with optional_import(purpose):
        from safetensors.torch import load

    content = file.read_bytes() if file.is_file() else b""
    if sha256(content).hexdigest() != SHA256[file.name]:
        state = f"is damaged: it has {len(content):,} bytes" if content else "is missing or empty"
        raise RuntimeError(
            f"{file} {state}, and its checksum is not the one that hookscope recorded for {purpose}. Install hookscope "
            f"again; in a checkout, `git restore {file.name}` in that folder brings the file back. If you trained it "
            "anew, put the new checksum into samples/bundled.py."
        )
    return load(content)
