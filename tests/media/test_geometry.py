"""Sizes: targets are covered, never undershot, and cut from the middle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers

from shardmill.errors import ConfigError, Filtered, SampleError
from shardmill.media.geometry import (
    Buckets,
    Native,
    ResizeCrop,
    Square,
    bucket_table,
    cover,
    likeness,
)

sides = integers(1, 5000)


@given(sides, sides, integers(1, 2048), integers(1, 2048))
def test_a_fit_covers_its_target_just_so(width: int, height: int, wide: int, tall: int) -> None:
    fit = cover(width, height, wide, tall)
    across, down = fit.resized
    assert (fit.width, fit.height) == (wide, tall)
    assert wide <= across
    assert tall <= down
    assert across == wide or down == tall
    assert abs(2 * fit.left + wide - across) <= 1
    assert abs(2 * fit.top + tall - down) <= 1


def test_a_photo_becomes_the_middle_square() -> None:
    assert Square().fit(1024, 768) == ResizeCrop((682, 512), 85, 0, 512, 512)


@pytest.mark.parametrize(("width", "height"), [(1000, 499), (1, 20000), (20000, 1)])
def test_a_long_image_is_left_out(width: int, height: int) -> None:
    with pytest.raises(Filtered, match="aspect ratio over 2"):
        Square().fit(width, height)


def test_without_a_limit_an_image_of_any_shape_is_taken() -> None:
    assert Square(max_aspect=None).fit(20000, 1) == ResizeCrop(
        (20000 * 512, 512), (20000 * 512 - 512) // 2, 0, 512, 512
    )


def test_two_to_one_is_still_taken() -> None:
    assert Square().fit(1000, 500).width == 512


@given(integers(64, 1024), integers(8, 64), floats(1, 4))
def test_buckets_keep_the_budget_the_step_and_the_aspect(
    side: int, step: int, max_aspect: float
) -> None:
    table = bucket_table(side * side, step, max_aspect)
    assert table
    for wide, tall in table:
        assert wide * tall <= side * side
        assert wide % step == tall % step == 0
        assert max(wide, tall) <= max_aspect * min(wide, tall)
        assert (tall, wide) in table
    assert len({wide / tall for wide, tall in table}) == len(table)


@given(integers(100, 4000), floats(0.5, 2))
def test_the_bucket_of_nearest_shape_is_chosen(width: int, aspect: float) -> None:
    height = max(1, round(width * aspect))
    if max(width, height) > 2 * min(width, height):
        return
    buckets = Buckets()
    fit = buckets.fit(width, height)
    chosen = likeness((fit.width, fit.height), (width, height))
    assert chosen == max(likeness(size, (width, height)) for size in buckets.sizes())


def test_a_table_overrides_the_buckets() -> None:
    buckets = Buckets(table=((256, 512), (512, 256)))
    assert buckets.sizes() == ((256, 512), (512, 256))
    assert buckets.fit(400, 300) == cover(400, 300, 512, 256)


@given(sides, sides)
def test_native_sizes_are_whole_codes_within_the_limit(width: int, height: int) -> None:
    native = Native(factor=16, max_pixels=512 * 512, max_aspect=32)
    try:
        fit = native.fit(width, height)
    except SampleError:
        return
    assert fit.width % 16 == fit.height % 16 == 0
    assert fit.width * fit.height <= 512 * 512
    if width * height <= 512 * 512:
        assert fit.resized == (width, height)


def test_an_image_smaller_than_a_code_is_refused() -> None:
    with pytest.raises(SampleError, match="too small"):
        Native().fit(15, 20)


def test_impossible_settings_are_refused() -> None:
    for make in (
        lambda: Square(resolution=0),
        lambda: Square(max_aspect=0.5),
        lambda: Buckets(max_aspect=None),
        lambda: Buckets(pixels=10000 * 10000),
        lambda: Buckets(pixels=10),
        lambda: Native(factor=0),
    ):
        with pytest.raises(ConfigError):
            make()
