"""How processors choose the size, or the tiles, to which they resize a picture or a video.

All of them are pure functions of height and width; they are compared with the processors' own over
thousands of sizes. Rounding matters: `round` is Python's, half to even, as theirs is.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, sqrt

from shardmill.errors import SampleError

MAX_ASPECT = 200


def fit_area(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the multiples of `factor` nearest to a picture whose area lies within the limits."""
    return fit_volume(1, 1, height, width, factor, min_pixels, max_pixels)


def fit_video(
    num_frames: int,
    height: int,
    width: int,
    *,
    temporal_patch: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """Return the frame size for which frames x height x width lies within the limits."""
    if num_frames < temporal_patch:
        raise SampleError("too few frames", f"{num_frames}, a patch takes {temporal_patch}")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    depth = round(num_frames / temporal_patch) * temporal_patch
    return fit_volume(num_frames, depth, height, width, factor, min_pixels, max_pixels)


def fit_volume(
    num_frames: int,
    depth: int,
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """Return the frame size for a volume: `depth` is `num_frames` rounded to whole patches."""
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise SampleError("aspect ratio over 200", f"{height} x {width}")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if depth * tall * wide > max_pixels:
        shrink = sqrt(num_frames * height * width / max_pixels)
        tall = max(factor, floor(height / shrink / factor) * factor)
        wide = max(factor, floor(width / shrink / factor) * factor)
    elif depth * tall * wide < min_pixels:
        grow = sqrt(min_pixels / (num_frames * height * width))
        tall, wide = ceil(height * grow / factor) * factor, ceil(width * grow / factor) * factor
    return tall, wide


def choose_tiles(
    height: int,
    width: int,
    *,
    tile_height: int,
    tile_width: int,
    min_tiles: int,
    max_tiles: int,
) -> tuple[int, int]:
    """Return (rows, columns) of the tiling whose shape is nearest to the picture's.

    Among equally near ones the larger wins while it covers less than twice the picture's area.
    """
    aspect, area = width / height, width * height
    best, best_distance = (1, 1), float("inf")
    for rows, columns in tilings(min_tiles, max_tiles):
        distance = abs(aspect - columns / rows)
        covered = 0.5 * tile_height * tile_width * columns * rows
        if distance < best_distance or (distance == best_distance and area > covered):
            best, best_distance = (rows, columns), distance
    return best


@lru_cache
def tilings(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return all (rows, columns) with so many tiles, few tiles first, then few columns."""
    found = [
        (rows, columns)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if rows * columns >= min_tiles
    ]
    return tuple(sorted(found, key=lambda tiling: tiling[0] * tiling[1]))
