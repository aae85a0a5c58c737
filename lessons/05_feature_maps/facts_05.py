"""What chapter 05 says beyond its cells, run."""

import torch

from hookscope import capture, feature_grid, samples
from hookscope_course.chapters import ch05_photos as photos


def test_channel_45_finds_the_eyes_of_this_cat(says):
    says(
        "Channel 45 responds to the eyes of the cat.",
        "For the other four photographs it returns zeros.",
        "But it is also empty for eyes that are twice as large, and for this human face.",
        "The square below gives 0. Try 8, 112 and 50: it reaches 4.9.",
    )
    net = photos.load_photo_cnn()

    def look(images: torch.Tensor) -> torch.Tensor:
        kept = list[torch.Tensor]()

        def hook(module: object, args: object, output: torch.Tensor) -> None:
            kept.append(output[:, 45].detach().clone())

        with net.blocks[10].depthwise.relu.register_forward_hook(hook):
            net(images)
        return kept[0]

    heat = look(torch.cat([samples.photo(name) for name in samples.PHOTOS]))
    assert heat[0].max() == 6
    assert not heat[1:].any()
    assert photos.name_part_of_cat(heat[0]) == "the eyes"
    cats = photos.vary_cat()
    highest = dict(zip(cats, look(torch.cat(list(cats.values()))).amax((1, 2)).tolist(), strict=True))
    assert [name for name, value in highest.items() if value == 0] == ["both covered", "twice as large", "a human face"]
    assert torch.equal(cats["the cat"], samples.photo("cat"))
    squares = [samples.photo("astronaut")[..., 20:110, 50:140], samples.photo("astronaut")[..., 8:58, 112:162]]
    large = [torch.nn.functional.interpolate(square, size=224, mode="bilinear") for square in squares]
    below, other = look(torch.cat(large)).amax((1, 2)).tolist()
    assert below == 0
    assert round(other, 1) == 4.9


def test_a_map_on_its_own_scale_runs_from_its_lowest_to_its_highest_value(says):
    says("If each map has its own scale, its colors run from its lowest to its highest value.")
    rising = torch.arange(36.0).view(6, 6)
    drawn = feature_grid(torch.stack([torch.zeros(6, 6), rising, 10 * rising]))
    tiles = [drawn.mosaic[top : top + high, left : left + wide] for left, top, wide, high in drawn.boxes]
    assert (tiles[1] == tiles[2]).all(), "ten times as much looks the same"
    assert tiles[0].max() == tiles[0].min() == tiles[1].min() < tiles[1].max(), (
        "and where all is the same, nothing runs"
    )


def test_the_channels_of_blocks_2_and_4_respond_to_edges(says):
    says(
        "The channel of block 2 responds to edges, but not to horizontal ones.",
        "The channel of block 4 responds more to edges like `\\` than to edges like `/`.",
    )
    net = photos.load_photo_cnn()
    down, across = torch.meshgrid(torch.arange(-111.5, 112), torch.arange(-111.5, 112), indexing="ij")

    def highest(block: int, channel: int, degrees: int, sign: int) -> float:
        """Return how much a channel responds to an edge through the middle: 0 is upright, 45 leans to the left."""
        angle = torch.tensor(float(degrees)).deg2rad()
        edge = 0.7 * sign * (across * angle.cos() - down * angle.sin()).mul(3).tanh()
        with torch.no_grad(), capture(net, name := f"blocks.{block}.depthwise.relu") as seen:
            net(edge.expand(1, 3, 224, 224))
        output = seen[name].output[0, channel]
        border = len(output) // 7
        return output[border:-border, border:-border].max().item()

    for sign in (1, -1):
        assert min(highest(2, 141, degrees, sign) for degrees in (-60, -20, 0, 20, 60)) > 2.5
        assert highest(2, 141, 90, sign) < 0.5
        for degrees in (20, 40, 60):
            assert highest(4, 160, degrees, sign) > 1.3 * highest(4, 160, -degrees, sign)
