"""Media in whole levels: from decoded pixels to the tensors of a processor in one pass over uint8.

A processor resizes an image or the frames of a video, makes floats of them, rescales, normalises
and cuts them into patches, each step a pass over four bytes a value. Here they are resized and cut
as uint8 (the visual rule knows how, see `VisualRule.arrange`), and travel so from worker to trainer
in a quarter of the bytes; Qwen's patches of an image, which hold it twice as two moments, in an
eighth. `Levels.finish` makes the floats last, on the device of the model where there is one.

The numbers are the processor's own: each process compares its first images and videos with what the
processor makes of them (`Levels.differs`), and goes back to the processor where they are not the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.tokens.visual.rule import VisualRule
from shardmill.train.documents import join_tensors
from shardmill.train.pixels.processor import VideoFrames

# Pillow's numbers of the two resamplings that processors use.
RESAMPLING = {2: "bilinear", 3: "bicubic"}
# Pillow and torch round resized pixels differently, at most so far apart on the sharpest edges.
MOST_LEVELS = 2.5
PIXELS = "pixel_values"
CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Normal:
    """How floats are made of levels: (levels - `mean`) / `std`, for each channel.

    `moments` is how many frames a patch holds; an image is that many times the same.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    moments: int

    def __call__(self, levels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the floats, where the levels lie, with the channels in front."""
        planes = levels.movedim(-1, 1)
        is_cut = planes.ndim == 5  # patches [n, channels, moments, height, width]
        mean, std = (
            torch.tensor(n, device=planes.device).view(-1, *[1] * (planes.ndim - 2))
            for n in (self.mean, self.std)
        )
        shape = (*planes.shape[:2], self.moments, *planes.shape[3:]) if is_cut else planes.shape
        floats = torch.empty(shape, dtype=dtype, device=planes.device)
        # A few at a time, which stay in the cache of a processor; a GPU takes all at once.
        step = max(1, CHUNK // planes[:1].numel()) if planes.device.type == "cpu" else len(planes)
        for start in range(0, len(planes), max(1, step)):
            part = slice(start, start + step)
            # Turned while they are bytes, which is a quarter of the work.
            floats[part] = planes[part].contiguous().to(torch.float32).sub_(mean).div_(std)
        return floats.flatten(1) if is_cut else floats


@dataclass(frozen=True, slots=True)
class Media:
    """How a processor treats one kind of medium, as far as the visual rule does not say it.

    `num_patches(...)` is what the processor says of sizes, where it can.
    """

    resample: str
    normal: Normal
    num_patches: Callable[..., int] | None

    @classmethod
    def of(cls, processor: Any) -> Media | None:
        """Return how this processor of images or videos does it, None if only itself knows."""
        steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        unknown = ("do_pad", "do_pan_and_scan")
        resample = RESAMPLING.get(int(getattr(processor, "resample", None) or -1))
        if (
            resample is None
            or not all(getattr(processor, step, False) is True for step in steps)
            or any(getattr(processor, step, None) for step in unknown)
        ):
            return None
        # As the processors do it, to the last bit: both are brought to levels, in single precision.
        unit = np.float32(1 / processor.rescale_factor)
        mean, std = (
            tuple((np.array(given, np.float32) * unit).tolist())
            for given in (processor.image_mean, processor.image_std)
        )
        moments = getattr(processor, "temporal_patch_size", None) or 1
        return cls(resample, Normal(mean, std, moments), None)

    def resize(self, image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return an image [height, width, 3] at another size."""
        if tuple(image.shape[:2]) == size:
            return image
        resize = torch.nn.functional.interpolate
        # The new axis first: behind `permute` its stride would hide that the channels lie last,
        # and torch would take them apart, at three times the cost.
        planes = image[None].permute(0, 3, 1, 2)
        resized = resize(planes, size, mode=self.resample, antialias=True)
        return resized[0].permute(1, 2, 0)


@dataclass(frozen=True, slots=True)
class Levels:
    """The media of a processor in levels; a kind that is None goes through the processor."""

    rule: VisualRule
    images: Media | None
    videos: Media | None

    @classmethod
    def of(cls, processor: Any, rule: VisualRule | None) -> Levels | None:
        """Return how this processor does it, or None if only the processor itself knows."""
        if rule is None:
            return None
        image: Any = getattr(processor, "image_processor", None)
        video: Any = getattr(processor, "video_processor", None)
        images, videos = Media.of(image), Media.of(video)
        if rule.image_grids is not None and images is not None:
            images = replace(images, num_patches=image.get_number_of_image_patches)
        if rule.image_grids is not None and videos is not None:
            # Not every version counts with the budget of a whole video.
            if not getattr(video, "cap_pixels_per_frame", None):
                count = partial(video.get_num_of_video_patches, videos_kwargs={})
                videos = replace(videos, num_patches=count)
        elif getattr(video, "do_center_crop", None):
            videos = None
        # One tensor for both is made floats in one way.
        if (
            videos
            and rule.video_pixels == PIXELS
            and (not images or images.normal != videos.normal)
        ):
            videos = None
        return None if images is None and videos is None else cls(rule, images, videos)

    @property
    def normals(self) -> dict[str, Normal]:
        """How the tensor of each name becomes floats."""
        kinds = {PIXELS: self.images, self.rule.video_pixels: self.videos}
        return {name: media.normal for name, media in kinds.items() if media is not None}

    def without(self, kinds: Iterable[str]) -> Levels | None:
        """Return this with media of these kinds left to the processor."""
        gone: dict[str, Any] = {f"{kind}s": None for kind in kinds}
        left = replace(self, **gone)
        return None if left.images is None and left.videos is None else left

    def make(self, media: Sequence[NDArray[np.uint8] | VideoFrames]) -> dict[str, Any] | None:
        """Return the tensors of images [height, width, 3] and videos, None if one has none.

        A medium of which the processor would make more or fewer patches is a `SampleError`.
        """
        made = []
        for medium in media:
            found = self._video(medium) if isinstance(medium, VideoFrames) else self._image(medium)
            if found is None:
                return None
            made.append({name: torch.as_tensor(value) for name, value in found.items()})
        return join_tensors(made)

    def finish(self, tensors: Mapping[str, Any], dtype: Any = None) -> dict[str, Any]:
        """Return the tensors as the model takes them, where they lie; floats stay as they are."""
        finished = dict(tensors)
        for name, normal in self.normals.items():
            levels = tensors.get(name)
            if levels is not None and levels.dtype == torch.uint8:
                finished[name] = normal(levels, dtype or torch.float32)
        return finished

    def differs(self, tensors: Mapping[str, Any], made: Mapping[str, Any]) -> str:
        """Return how these tensors are not those that the processor made, "" if they are."""
        finished, normals = self.finish(tensors), self.normals
        if finished.keys() != made.keys():
            return f"it makes {', '.join(made)}, not {', '.join(finished)}"
        for name, found in finished.items():
            if made[name].shape != found.shape:
                return f"{name} has the shape {tuple(made[name].shape)}, not {tuple(found.shape)}"
            far = float((made[name] - found).abs().max()) if found.numel() else 0.0
            if far > (MOST_LEVELS / min(normals[name].std) if name in normals else 0):
                return f"{name} is {far:.3g} away"
        return ""

    def _image(self, pixels: NDArray[np.uint8]) -> Mapping[str, Any] | None:
        if self.images is None:
            return None
        found = self.rule.arrange(torch.from_numpy(pixels), self.images.resize)
        if found is not None and self.images.num_patches is not None:
            size = pixels.shape[:2]
            _check_patches(
                self.images.num_patches(*size), len(found[PIXELS]), f"an image of {size}"
            )
        return found

    def _video(self, video: VideoFrames) -> Mapping[str, Any] | None:
        if self.videos is None:
            return None
        frames = video.pixels.permute(0, 2, 3, 1)
        found = self.rule.arrange_video(frames, video.size)
        num_frames, size = len(frames), (video.size.height, video.size.width)
        # A last patch that is not full is counted by some versions and not by others.
        whole = num_frames % self.videos.normal.moments == 0
        if found is not None and whole and self.videos.num_patches is not None:
            wanted = self.videos.num_patches(num_frames, *size)
            num = len(found[self.rule.video_pixels])
            _check_patches(wanted, num, f"{num_frames} frames of {size}")
        return found


def _check_patches(wanted: int, found: int, what: str) -> None:
    if wanted != found:
        detail = f"{wanted} patches of {what}, {found} by the rule"
        raise SampleError("processor and visual rule differ", detail)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Brings a batch to a device and finishes its images there; without a device it stays."""

    device: Any = None
    levels: Levels | None = None
    dtype: Any = None

    def __call__(self, batch: Any) -> Any:
        """Return the batch, or a part of one, with its tensors there."""
        if self.device is None:
            return batch
        if isinstance(batch, torch.Tensor):
            return batch.to(self.device, non_blocking=True)
        if isinstance(batch, list | tuple):
            return type(batch)(map(self, batch))
        if not isinstance(batch, Mapping):
            return batch
        moved = {name: self(value) for name, value in batch.items()}
        return moved if self.levels is None else self.levels.finish(moved, self.dtype)
