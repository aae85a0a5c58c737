"""Read weights and images from this package or from a data package, and verify their checksums."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from torch import Tensor

from hookscope.extras import optional_import

SHA256 = {
    "digit_cnn.safetensors": "a27d4aefa07e2bad414e20d03dfaceb29b39012b6d5c7e971ef871031d714b69",
    "digits.safetensors": "2368626786ff35f80b63c9e5aefbf839091368ee2e6274f3cc17d63b184883fb",
    "photos.safetensors": "d90e7ceca5922e45e06299d1820080f5a2ae11a5f1a7629fb2fd4f8553ad4703",
    "story_lm.safetensors": "713660ec70bdd16b946c3541952060edd442d326ec7bb9d307939a5c8cc4b989",
    "texture_cnn.safetensors": "ba81951d6e70b22a072a1b2a60e60b085959d6773f2dcd265d74171ecfe7652b",
    "textures.safetensors": "6c51d03df1295a9bc112e4f8ea3d28be9d83ea48fde633aaa4e6ebda8f8413b8",
}


def load_bundled(file: Path, purpose: str) -> dict[str, Tensor]:
    """Load a bundled file.

    Args:
        file: one of the files in `SHA256`.
        purpose: the purpose of the tensors, such as "a trained DigitCNN". It goes into the error message.

    Raises:
        ModuleNotFoundError: safetensors is not installed.
        RuntimeError: the file is missing, or its checksum is wrong.

    """
    with optional_import(purpose):
        from safetensors.torch import load

    advice = (
        f"Install hookscope again, or run `git restore {file.name}` in that folder of a checkout. If you made the file "
        "again, put its checksum into samples/bundled.py"
    )
    return load(read_verified(file, SHA256[file.name], purpose, advice))


def read_verified(file: Path, checksum: str, purpose: str, advice: str) -> bytes:
    """Return the content of a file whose SHA-256 is known.

    Args:
        file: the file.
        checksum: its SHA-256, in hexadecimal digits.
        purpose: as for `load_bundled`.
        advice: the end of the error message: what to type.

    Raises:
        RuntimeError: the file is missing, or its checksum is wrong.

    """
    content = file.read_bytes() if file.is_file() else b""
    verify(content, checksum, file, purpose, advice)
    return content


def verify(content: bytes, checksum: str, file: object, purpose: str, advice: str) -> None:
    """Raise a RuntimeError if the SHA-256 of a file's content is another one."""
    if sha256(content).hexdigest() != checksum:
        state = "is missing or empty"
        if content:
            state = f"is damaged: it has {len(content):,} bytes with another checksum"
        raise RuntimeError(f"{file} {state}, so hookscope cannot load {purpose}. {advice}")


def find_file(requirement: str, name: str) -> Path | None:
    """Return the path of a file in an installed package, without importing the package.

    Args:
        requirement: the pinned package, such as "a-package==0.1.0".
        name: the last part of the file's path.

    Returns:
        None if the package is not installed, or lists no such file.

    """
    try:
        found = files(requirement.partition("==")[0]) or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in found if file.name == name), None)


def require_file(function: str, requirement: str, name: str, command: str) -> Path:
    """Return the path of a file in an installed package, as `find_file` does.

    Args:
        function: the function that needs it, for the error message.
        requirement: the pinned package.
        name: the last part of the file's path.
        command: the command that installs the package.

    Raises:
        ModuleNotFoundError: the package is not installed.

    """
    file = find_file(requirement, name)
    if file is None:
        package = requirement.partition("==")[0]
        raise ModuleNotFoundError(
            f"{function} needs its trained weights, but {package} is not installed: {command} {requirement}",
            name=package,
        )
    return file
