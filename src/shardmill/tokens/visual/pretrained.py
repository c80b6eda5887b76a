"""The visual rule of a model: by folder, by a live processor, or by the name of its family.

A setting that no file of a folder gives has the default of the processor's class, which is not
always that of the published checkpoints.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.codec import load_class
from shardmill.model.sample import MediaSize
from shardmill.plugins import VISUAL_RULES
from shardmill.tokens.visual.rule import ModelFolder, VisualRule


def rule_of_folder(path: Path) -> VisualRule:
    """Return the visual rule of the model in a folder.

    The family is found by the `processor_class` of the folder among the `processors` of all
    families in `plugins.VISUAL_RULES`; one that none of them names is a `ConfigError`.
    """
    folder = ModelFolder.read(path)
    families = {name: family for family in _families() for name in family.processors}
    name = str(folder.processor.get("processor_class"))
    if name not in families:
        raise ConfigError(
            f"{path}: the rule of its processor {name} is not known: name one of the families, or "
            f"your own rule; known processors are {', '.join(sorted(families))}"
        )
    try:
        return families[name].from_folder(folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot read the settings of its {name}: {error!r}") from error


def rule_of_processor(processor: Any) -> VisualRule:
    """Return the visual rule of a live processor of transformers, by the files that it saves."""
    if not hasattr(processor, "save_pretrained"):
        raise ConfigError(f"{type(processor).__name__} is not a processor of transformers")
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        return rule_of_folder(Path(folder))


class _Video(Protocol):
    """What a sampler sees of a video; see `media.samplers.VideoTable`."""

    @property
    def fps(self) -> float: ...
    @property
    def times_s(self) -> NDArray[np.float64]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFrames:
    """The frame sampler "model": the very frames at which a model's processor would look."""

    rule: VisualRule

    def times(self, video: _Video) -> NDArray[np.float64]:
        return video.times_s[self.rule.frames(MediaSize(num_frames=len(video), fps=video.fps))]


def _families() -> list[type[VisualRule]]:
    found = [load_class(path) for path in dict.fromkeys(VISUAL_RULES.values())]
    return [family for family in found if issubclass(family, VisualRule)]
