"""The palette of an image: one of two color maps, and special colors.

Both color maps are readable with all common kinds of color blindness and change evenly in lightness:

- viridis, for values from low to high (dark blue to yellow);
- coolwarm, for values on both sides of a center (blue, gray, red). Of matplotlib's classic diverging maps, it
  separates the two signs best for color-blind readers: at its ends CIEDE2000 is 40 or more for normal, protan,
  deutan and tritan vision (Machado 2009, full strength), but only 23 for RdBu and 26 for PuOr. Both ends have the
  same lightness (L* 38), so equal sizes look alike on both sides.

The tables are the 256 entries of matplotlib: viridis by S. van der Walt and N. Smith (CC0), coolwarm by
K. Moreland (2009).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_VIRIDIS = (
    "44015444025544035745055845065a45085b46095c460b5e460c5f460e61470f62471163471265471466471567471669"
    "47186a48196b481a6c481c6e481d6f481e70482071482172482273482374472575472676472777472878472a79472b7a"
    "472c7b462d7c462f7c46307d46317e45327f45347f453580453681443781443982433a83433b83433c84423d84423e85"
    "4240854141864142864043874044873f45873f47883e48883e49893d4a893d4b893d4c893c4d8a3c4e8a3b508a3b518a"
    "3a528b3a538b39548b39558b38568b38578c37588c37598c365a8c365b8c355c8c355d8c345e8d345f8d33608d33618d"
    "32628d32638d31648d31658d31668d30678d30688d2f698d2f6a8d2e6b8e2e6c8e2e6d8e2d6e8e2d6f8e2c708e2c718e"
    "2c728e2b738e2b748e2a758e2a768e2a778e29788e29798e287a8e287a8e287b8e277c8e277d8e277e8e267f8e26808e"
    "26818e25828e25838d24848d24858d24868d23878d23888d23898d22898d228a8d228b8d218c8d218d8c218e8c208f8c"
    "20908c20918c1f928c1f938b1f948b1f958b1f968b1e978a1e988a1e998a1e998a1e9a891e9b891e9c891e9d881e9e88"
    "1e9f881ea0871fa1871fa2861fa38620a48520a58521a68521a78422a78423a88323a98224aa8225ab8126ac8127ad80"
    "28ae7f29af7f2ab07e2bb17d2cb17d2eb27c2fb37b30b47a32b57a33b67935b77836b87738b97639b9763bba753dbb74"
    "3ebc7340bd7242be7144be7045bf6f47c06e49c16d4bc26c4dc26b4fc36951c46853c56755c66657c66559c7645bc862"
    "5ec96160c96062ca5f64cb5d67cc5c69cc5b6bcd596dce5870ce5672cf5574d05477d05279d1517cd24f7ed24e81d34c"
    "83d34b86d44988d5478bd5468dd64490d64392d74195d73f97d83e9ad83c9dd93a9fd938a2da37a5da35a7db33aadb32"
    "addc30afdc2eb2dd2cb5dd2bb7dd29bade27bdde26bfdf24c2df22c5df21c7e01fcae01ecde01dcfe11cd2e11bd4e11a"
    "d7e219dae218dce218dfe318e1e318e4e318e7e419e9e419ece41aeee51bf1e51cf3e51ef6e61ff8e621fae622fde724"
)
_COOLWARM = (
    "3a4cc03b4dc13c4fc33e51c43f53c64054c74156c94258ca435acc455bcd465dcf475fd04860d14962d34b64d44c66d6"
    "4d67d74e69d8506bda516cdb526edc5370dd5571de5673e05775e15876e25a78e35b79e45c7be55d7de65f7ee76080e8"
    "6182ea6383ea6485eb6586ec6788ed6889ee698bef6b8df06c8ef16d90f16f91f27093f37194f47395f47497f57598f6"
    "779af6789bf77a9df87b9ef87ca0f97ea1f97fa2fa80a4fa82a5fb83a6fb85a8fb86a9fc87aafc89acfc8aadfd8baefd"
    "8daffd8eb1fd90b2fe91b3fe92b4fe94b5fe95b7fe97b8fe98b9fe99bafe9bbbfe9cbcfe9dbdfe9fbefea0bffea2c0fe"
    "a3c1fea4c2fea6c3fda7c4fda8c5fdaac6fdabc7fcacc8fcaec9fcafcafbb0cbfbb2cbfbb3ccfab4cdfab6cef9b7cff9"
    "b8cff8b9d0f8bbd1f7bcd1f6bdd2f6bed3f5c0d3f5c1d4f4c2d4f3c3d5f2c5d5f2c6d6f1c7d6f0c8d7efc9d7eecad8ee"
    "ccd8edcdd9ecced9ebcfd9ead0dae9d1dae8d2dae7d3dbe6d5dbe5d6dbe4d7dbe2d8dbe1d9dce0dadcdfdbdcdedcdcdd"
    "dddcdbdedbdadfdbd9e0dad7e1dad6e2d9d4e3d9d3e4d8d1e5d8d0e6d7cfe7d6cde7d6cce8d5cae9d4c9ead3c7ebd3c6"
    "ecd2c4ecd1c3edd0c1edcfc0eecfbeefcebcefcdbbf0ccb9f1cbb8f1cab6f2c9b5f2c8b3f2c7b2f3c6b0f3c5aff4c4ad"
    "f4c3abf4c2aaf5c1a8f5c0a7f5bfa5f6bda4f6bca2f6bba0f6ba9ff6b99df6b79cf6b69af7b598f7b397f7b295f7b194"
    "f7b092f7ae91f7ad8ff6ab8df6aa8cf6a98af6a789f6a687f6a486f6a384f5a182f5a081f59e7ff49d7ef49b7cf49a7b"
    "f39879f39678f39576f29375f29173f19072f18e70f08d6ff08b6def896cee876aee8669ed8467ec8266ec8064eb7f63"
    "ea7d61ea7b60e9795ee8775de7755ce6745ae67259e57057e46e56e36c54e26a53e16852e06650df644fde624edd604c"
    "dc5e4bdb5c4ada5a48d95847d85646d75444d65243d44f42d34d40d24b3fd1493ecf463dce443ccd423acc3f39ca3d38"
    "c93b37c83835c63534c53233c43032c22d31c12a30bf282ebe232dbc1f2cbb1a2bb9162ab81129b60d28b50827b30326"
)


def _table(digits: str) -> NDArray[np.uint8]:
    table = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8).reshape(256, 3)
    table.flags.writeable = False
    return table


VIRIDIS = _table(_VIRIDIS)
"""Low to high: 256 RGB colors, uint8 (256, 3), read-only."""

COOLWARM = _table(_COOLWARM)
"""Below, at and above a center: 256 RGB colors, uint8 (256, 3), read-only."""

LEVELS = 249
"""The number of colors of a map. It is odd, so that the center has its own color: ``LEVELS // 2``."""

# The special colors. No three colors are far from both maps and from each other for every kind of vision, so the
# first three also differ in lightness and, if there is space, in their hatching.
NAN, POS_INF, NEG_INF, PAPER, INK, EDGE, SHADE = range(LEVELS, LEVELS + 7)
_OTHERS = {
    NAN: (0, 0, 0),
    POS_INF: (191, 127, 191),
    NEG_INF: (127, 0, 63),
    PAPER: (250, 250, 250),
    INK: (20, 20, 20),
    EDGE: (150, 150, 150),
    SHADE: (85, 85, 85),
}


def palette(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the 256 colors of an image: `LEVELS` steps of a color map, then the special colors.

    Args:
        colors: `VIRIDIS` or `COOLWARM`, or any uint8 (256, 3).

    Returns:
        uint8 (256, 3). Index 0 is the first color of the map and ``LEVELS - 1`` its last; `NAN`, `POS_INF`,
        `NEG_INF`, `PAPER` (background), `INK` (text), `EDGE` (frames) and `SHADE` (between the two) follow.

    Example:
        >>> palette(VIRIDIS)[[0, LEVELS - 1, NAN]].tolist()
        [[68, 1, 84], [253, 231, 36], [0, 0, 0]]

    """
    steps = np.linspace(0, 255, LEVELS)
    table = np.zeros((256, 3), dtype=np.uint8)
    for band in range(3):
        table[:LEVELS, band] = np.rint(np.interp(steps, np.arange(256), colors[:, band]))
    for index, color in _OTHERS.items():
        table[index] = color
    return table
