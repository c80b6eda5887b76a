"""The frames of a video that a model's processor looks at, decoded at the size it wants.

Which frames is arithmetic on the sizes in the index, by the rule that also counted their tokens.
Each frame is resized as it is decoded, exactly as the processor would resize it, so that memory
holds what the model gets and not the video.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardmill.errors import SampleError, need
from shardmill.media.video.file import open_video
from shardmill.media.video.frames import FrameConverter, decode_each
from shardmill.media.video.table import probe_video
from shardmill.model.frames import FrameNumbers
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL
from shardmill.tokens.visual.rule import VisualRule


@runtime_checkable
class TakesVideos(Protocol):
    """A visual rule that says which frames of a video its processor takes."""

    def frames(self, size: MediaSize) -> FrameNumbers:
        """Return the numbers of the frames."""


@dataclass(frozen=True, slots=True)
class ChosenFrames:
    """Frames of a video as uint8 [frames, 3, height, width], and what the whole video is."""

    pixels: Any
    numbers: FrameNumbers
    size: MediaSize

    def metadata(self) -> Any:
        """Return what a processor must know to tell the time of each frame."""
        return need("transformers.video_utils", extra="train").VideoMetadata(
            total_num_frames=self.size.num_frames,
            fps=self.size.fps,
            frames_indices=self.numbers.tolist(),
        )


def read_video(content: bytes | memoryview, size: MediaSize, rule: VisualRule) -> ChosenFrames:
    """Return the frames that the rule chooses; a video that is not as indexed is a SampleError."""
    torch = need("torch", extra="train")
    if not isinstance(rule, TakesVideos):
        raise SampleError(f"{type(rule).__name__} takes no video")
    numbers, target = rule.frames(size), _target(rule, size)
    converter = FrameConverter()

    def make(frame: Any) -> Any:
        pixels = torch.from_numpy(converter.rgb(frame)).permute(2, 0, 1)
        _check("size", (size.height, size.width), tuple(pixels.shape[1:]))
        return pixels if target is None else _resized(torch, pixels, target)

    with open_video(content) as opened:
        table = probe_video(opened)
        _check("number of frames", size.num_frames, len(table))
        frames = decode_each(opened, table, np.asarray(numbers), make)
    return ChosenFrames(torch.stack(frames), numbers, size)


def _target(rule: VisualRule, size: MediaSize) -> tuple[int, int] | None:
    if not isinstance(rule, Qwen2VL | Qwen3VL):
        return None
    _, tall, wide = rule.count("video", size).grid
    return tall * rule.videos.patch_size, wide * rule.videos.patch_size


def _resized(torch: Any, pixels: Any, target: tuple[int, int]) -> Any:
    if tuple(pixels.shape[1:]) == target:
        return pixels
    resize = torch.nn.functional.interpolate
    return resize(pixels[None], target, mode="bicubic", antialias=True)[0]


def _check(what: str, indexed: Any, found: Any) -> None:
    if indexed != found:
        raise SampleError("not the video in the index", f"{what} {found}, the index says {indexed}")
