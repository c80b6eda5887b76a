"""Images in whole levels: from decoded pixels to the tensors of a processor in one pass over uint8.

A processor resizes an image, makes floats of it, rescales, normalises and cuts it into patches,
each step a pass over four bytes a value. Here the image is resized and cut as uint8 (the visual
rule knows how, see `VisualRule.arrange`), and travels so from worker to trainer in a quarter of the
bytes; Qwen's patches, which hold each image twice as two moments, in an eighth. `Levels.finish`
makes the floats last, on the device of the model where there is one.

The numbers are the processor's own: each process compares its first images with what the processor
makes of them (`Levels.differs`), and goes back to the processor where they are not the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.tokens.visual.rule import VisualRule

# Pillow's numbers of the two resamplings that processors use.
RESAMPLING = {2: "bilinear", 3: "bicubic"}
# Pillow and torch round resized pixels differently, at most so far apart on the sharpest edges.
MOST_LEVELS = 2.5
PIXELS = "pixel_values"


@dataclass(frozen=True, slots=True)
class Levels:
    """How a processor makes floats of levels: (levels - `mean`) / `std`, for each channel.

    `copies` is how often a patch holds one image, as the moments of a video that stands still.
    `num_patches(height, width)` is what the processor says of an image, where it can.
    """

    rule: VisualRule
    resample: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    copies: int
    num_patches: Callable[[int, int], int] | None

    @classmethod
    def of(cls, processor: Any, rule: VisualRule | None) -> Levels | None:
        """Return how this processor does it, or None if only the processor itself knows."""
        image: Any = getattr(processor, "image_processor", None)
        steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        if rule is None or not all(getattr(image, step, False) is True for step in steps):
            return None
        resample = RESAMPLING.get(int(getattr(image, "resample", None) or -1))
        unknown = any(getattr(image, name, None) for name in ("do_pad", "do_pan_and_scan"))
        if resample is None or unknown:
            return None
        # As the processors do it, to the last bit: both are brought to levels, in single precision.
        unit = np.float32(1 / image.rescale_factor)
        mean, std = (
            (np.array(given, np.float32) * unit).tolist()
            for given in (image.image_mean, image.image_std)
        )
        return cls(
            rule,
            resample,
            tuple(mean),
            tuple(std),
            getattr(image, "temporal_patch_size", None) or 1,
            None if rule.image_grids is None else image.get_number_of_image_patches,
        )

    def make(self, images: Sequence[NDArray[np.uint8]]) -> dict[str, Any] | None:
        """Return the tensors of images [height, width, 3], or None if the rule makes none.

        An image of which the processor would make more or fewer patches is a `SampleError`.
        """
        made = []
        for image in images:
            found = self.rule.arrange(torch.from_numpy(image), self._resize)
            if found is None:
                return None
            if self.num_patches is not None:
                size = image.shape[:2]
                wanted, num = self.num_patches(*size), len(found[PIXELS])
                if wanted != num:
                    detail = f"{wanted} patches of an image of {size}, {num} by the rule"
                    raise SampleError("processor and visual rule differ", detail)
            made.append(found)
        return {name: torch.cat([torch.as_tensor(one[name]) for one in made]) for name in made[0]}

    def finish(self, tensors: Mapping[str, Any], dtype: Any = None) -> dict[str, Any]:
        """Return the tensors as the model takes them, where they lie; floats stay as they are."""
        levels = tensors.get(PIXELS)
        if levels is None or levels.dtype != torch.uint8:
            return dict(tensors)
        mean, std = (torch.tensor(n, device=levels.device) for n in (self.mean, self.std))
        floats = levels.to(torch.float32).sub_(mean).div_(std).movedim(-1, 1)
        if floats.ndim == 5:  # patches [n, channels, moments, height, width]
            floats = floats.expand(-1, -1, self.copies, -1, -1).flatten(1)
        return {**tensors, PIXELS: floats.contiguous().to(dtype or torch.float32)}

    def differs(self, tensors: Mapping[str, Any], made: Mapping[str, Any]) -> str:
        """Return how these tensors are not those that the processor made, "" if they are."""
        finished = self.finish(tensors)
        if finished.keys() != made.keys():
            return f"it makes {', '.join(made)}, not {', '.join(finished)}"
        for name, found in finished.items():
            if made[name].shape != found.shape:
                return f"{name} has the shape {tuple(made[name].shape)}, not {tuple(found.shape)}"
            far = float((made[name] - found).abs().max()) if found.numel() else 0.0
            if far > (MOST_LEVELS / min(self.std) if name == PIXELS else 0):
                return f"{name} is {far:.3g} away"
        return ""

    def _resize(self, image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        if tuple(image.shape[:2]) == size:
            return image
        resize = torch.nn.functional.interpolate
        # The new axis first: behind `permute` its stride would hide that the channels lie last,
        # and torch would take them apart, at three times the cost.
        planes = image[None].permute(0, 3, 1, 2)
        resized = resize(planes, size, mode=self.resample, antialias=True)
        return resized[0].permute(1, 2, 0)


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
