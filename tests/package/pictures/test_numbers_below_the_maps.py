"""The numbers that stand with the feature maps are those of the activation, of any dtype and layout, left as it was."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from hookscope.pictures.feature_maps import feature_grid
from tests.shared.grid_pixels import BASE, list_numbers, read_map


def test_rows_hold_the_numbers_of_every_channel():
    activation = torch.randn(2, 5, 9, 11).relu()
    grid = feature_grid(activation, sample=1)
    maps = activation[1].double().flatten(1)
    assert list_numbers(grid, "channel") == grid.channels == [0, 1, 2, 3, 4]
    assert list_numbers(grid, "min") == maps.amin(1).tolist()
    assert list_numbers(grid, "max") == maps.amax(1).tolist()
    assert list_numbers(grid, "mean") == pytest.approx(maps.mean(1).tolist())
    assert list_numbers(grid, "% zeros") == pytest.approx(((maps == 0).double().mean(1) * 100).tolist())
    assert list(grid.rows[0]) == ["channel", "min", "max", "mean", "% zeros"]


def test_almost_all_zeros_is_not_all_zeros():
    activation = torch.zeros(1, 1, 300, 300)
    activation[..., 0, 0] = 1
    grid = feature_grid(activation)
    assert grid.rows[0]["% zeros"] == 99.99
    assert "dead" not in grid.alt


@pytest.mark.parametrize(
    "given",
    [
        BASE.half(),
        BASE.bfloat16(),
        BASE.double(),
        BASE,
        BASE.byte(),
        BASE.to(torch.int16),
        BASE.to(torch.uint16),
        BASE.float().to(memory_format=torch.channels_last),
        BASE.float().transpose(-1, -2).contiguous().transpose(-1, -2),
        BASE.float()[:1].expand(2, -1, -1, -1),
        nn.Parameter(BASE.float()),
        BASE.float().requires_grad_() * 1,
        BASE.float().to_sparse(),
        torch.complex(BASE.float(), -BASE.float()).conj().imag,  # a view with the negative bit
        BASE.numpy(),
        BASE.numpy().astype(np.float16),
        BASE.numpy().astype(">f8"),
        np.ascontiguousarray(BASE.numpy()[..., ::-1])[..., ::-1],
    ],
    ids=lambda given: f"{type(given).__name__}-{given.dtype}",
)
def test_every_dtype_and_layout_gives_the_same_picture(given):
    reference = feature_grid(BASE.float())
    grid = feature_grid(given)
    assert (grid.mosaic == reference.mosaic).all()
    assert grid.rows == reference.rows


def test_bool_and_float8_are_numbers_too():
    assert feature_grid(BASE > 10).rows == feature_grid((BASE > 10).float()).rows
    small = BASE.to(torch.float8_e5m2)
    assert feature_grid(small).rows == feature_grid(small.float()).rows


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_beyond_float32_stay_apart(dtype):
    activation = torch.tensor([[2**24, 2**24 + 1, 2**24 + 2]], dtype=dtype)
    assert read_map(feature_grid(activation)) == [[0, 124, 248]]


def test_the_activation_is_neither_changed_nor_kept():
    activation = torch.randn(1, 4, 8, 8)
    activation[0, 0, 0, 0] = float("nan")
    before, version = activation.clone(), activation._version
    grid = feature_grid(activation, center=0, scale=(-1, 1))
    assert torch.equal(activation.nan_to_num(7), before.nan_to_num(7))
    assert activation._version == version
    rows, mosaic = repr(grid), grid.mosaic.copy()
    activation.fill_(3)
    assert repr(grid) == rows
    assert (grid.mosaic == mosaic).all()
    gone = weakref.ref(activation)
    del activation
    assert gone() is None
