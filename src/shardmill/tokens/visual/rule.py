"""The visual rule: everything that shardmill must know about a family of vision-language models.

A chat template marks a medium by a placeholder; the model's processor replaces it by delimiters and
a run of visual tokens whose length depends on the size of the medium. A rule returns that
replacement with each run written as a single token and counted beside it. Visual tokens are special
tokens, which no tokenizer merges with anything, so

    tokens of the sample = tokens of the text with its replacements + num_visual - num_runs

holds to the token, even where delimiters are plain text that merges with its neighbors.

One file is one family (`qwen`, `llava`, `gemma3`, `internvl`), listed in `plugins.VISUAL_RULES`; a
user's own function can be a rule too (`FunctionRule`). A model folder names its family. A setting
that no file of the folder gives has the default of the processor's class, which is not always that
of the published checkpoints.

`measure`, the pixel reader, the frame sampler "model", the pack builder and `neat_packing` ask the
rule and nothing else, so a family behaves alike in all of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import Named, load_class, load_named
from shardmill.model.frames import FrameNumbers, UnknownSize
from shardmill.model.sample import MediaSize
from shardmill.model.tokenrow import TokenRow
from shardmill.plugins import VISUAL_RULES

# A tensor of pixels and (height, width) in, the resized tensor out.
Resize: TypeAlias = Callable[[Any, tuple[int, int]], Any]
# A video of which every frame is taken may have absurdly many runs; each is spelled out as text.
MAX_RUNS = 1 << 16


@dataclass(frozen=True, slots=True)
class Visual:
    """One medium as a processor writes it: `text` holds each run of visual tokens as one token.

    `num_visual` counts the tokens of all `num_runs` runs; `grid` is (time, height, width) in
    patches, before any merging; `num_outer` counts the delimiters that the chat template itself
    writes around the placeholder.
    """

    text: str
    num_visual: int
    num_runs: int = 1
    grid: tuple[int, int, int] = (1, 1, 1)
    num_outer: int = 0

    @property
    def num_hidden(self) -> int:
        """The visual tokens that `text` does not spell out."""
        return self.num_visual - self.num_runs


class VisualRule(ABC):
    """The base of all families: a frozen dataclass whose fields are the processor's settings.

    A family must say `placeholders` and `count`. The rest has defaults: no videos, sizes left to
    the processor, positions that count 0, 1, 2.
    """

    __slots__ = ()

    # The classes of processors, as `processor_class` in a model folder names them.
    processors: ClassVar[tuple[str, ...]] = ()
    # The tensor in which the processor returns the grid of each image. With it, tensors of images
    # are made and checked without any text, in a tenth of the time.
    image_grids: ClassVar[str | None] = None
    # The tensor in which the processor returns the pixels of videos.
    video_pixels: ClassVar[str] = "pixel_values_videos"

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        """Return the rule with the settings of a model folder; see `processors`."""
        raise ConfigError(f"{cls.__name__} does not read model folders: give its fields instead")

    @abstractmethod
    def placeholders(self) -> Mapping[str, str]:
        """Return what the chat template writes for each kind of medium that the model takes."""

    @abstractmethod
    def count(self, kind: str, size: MediaSize) -> Visual:
        """Return the replacement of one medium of a kind, "image" or "video".

        A medium that the processor refuses is a `SampleError`, one whose header did not say
        enough an `UnknownSize`.
        """

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the visual tokens of many media of a kind, -1 for those that `count` refuses.

        `sizes` are rows of height and width, for videos also the frames and their rate. Families
        say it by arrays; this is for those that do not.
        """
        different, which = np.unique(sizes, axis=0, return_inverse=True)
        counts = []
        for height, width, *video in different.tolist():
            frames, fps = video or (0, 0.0)
            size = MediaSize(height=int(height), width=int(width), num_frames=int(frames), fps=fps)
            try:
                counts.append(self.count(kind, size).num_visual)
            except SampleError:
                counts.append(-1)
        return np.array(counts, np.int64)[which.reshape(-1)]

    def frames(self, size: MediaSize) -> FrameNumbers:
        """Return the numbers of the frames of a video that the processor looks at, in order."""
        raise refuse(type(self).__name__, "video")

    def frame_size(self, size: MediaSize) -> tuple[int, int] | None:
        """Return (height, width) of the frames that the model sees, or None.

        The pixel reader then resizes each frame as it is decoded, as the processor resizes, so that
        memory holds what the model gets. None leaves resizing to the processor.
        """
        return None

    def arrange(self, image: Any, resize: Resize) -> Mapping[str, Any] | None:
        """Return what the processor makes of one image, with its pixels still in levels, 0 to 255.

        `image` is a uint8 tensor [height, width, 3]; `resize(image, (height, width))` resizes as
        the processor does. "pixel_values" are uint8 with the channels last, as they were decoded:
        images [n, height, width, 3], or patches [n, moments, height, width, 3], which the model
        takes flat. None leaves images to the processor.
        """
        return None

    def arrange_video(self, frames: Any, size: MediaSize) -> Mapping[str, Any] | None:
        """Return what the processor makes of one video, likewise.

        `frames` are those that `frames` chose of the video of this `size`, a uint8 tensor
        [frames, height, width, 3] at `frame_size`.
        """
        return None

    def positions(self, row: TokenRow, seconds_per_grid: Sequence[float] = ()) -> NDArray[np.int64]:
        """Return the position ids of a document as (axes, n), counted as the model counts them.

        `seconds_per_grid` has the seconds between temporal patches of each video, where the
        processor returned them.
        """
        return np.arange(len(row.ids), dtype=np.int64)[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """The settings of a model folder that say how its processor treats media.

    `model` is config.json, `tokens` tokenizer_config.json; both may be empty. Settings of media are
    taken as the processors take them: nested in `processor_config.json` first, then
    `video_preprocessor_config.json` for videos, then `preprocessor_config.json`.
    """

    path: Path
    processor: Mapping[str, Any]
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    tokens: Mapping[str, Any]
    model: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """Return what the files of a folder say; one without a processor is a `ConfigError`."""
        processor = _read_json(path / "processor_config.json")
        image = _read_json(path / "preprocessor_config.json")
        video = _read_json(path / "video_preprocessor_config.json")
        if not processor and not image:
            raise ConfigError(
                f"{path} has no processor_config.json and no preprocessor_config.json"
            )
        return cls(
            path=path,
            processor={**given(image, "processor_class"), **processor},
            image=processor.get("image_processor") or image,
            video=processor.get("video_processor") or video or image,
            tokens=_read_json(path / "tokenizer_config.json"),
            model=_read_json(path / "config.json"),
        )

    def token(self, name: str, default: str) -> str:
        """Return the text of a named token of the tokenizer, such as "boi_token"."""
        extra = self.tokens.get("extra_special_tokens")
        found = self.tokens.get(name) or (extra.get(name) if isinstance(extra, dict) else None)
        found = found.get("content") if isinstance(found, dict) else found
        return found if isinstance(found, str) else default

    def need(self, name: str) -> Any:
        """Return a setting of the processor that has no default."""
        if self.processor.get(name) is None:
            raise ConfigError(f"{self.path / 'processor_config.json'} lacks {name!r}")
        return self.processor[name]


def given(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return those of the named settings that have a value."""
    return {name: settings[name] for name in names if settings.get(name) is not None}


def rule_of_folder(path: Path) -> VisualRule:
    """Return the visual rule of the model in a folder.

    The family is found by the `processor_class` of the folder among the `processors` of all
    families in `plugins.VISUAL_RULES`; one that none of them names is a `ConfigError`.
    """
    return _rule_of_settings(ModelFolder.read(path))


def rule_of_processor(processor: Any) -> VisualRule:
    """Return the visual rule of a live processor of transformers, by what it would save."""
    name = type(processor).__name__
    if not hasattr(processor, "to_dict"):
        raise ConfigError(f"{name} is not a processor of transformers")
    parts = (getattr(processor, f"{kind}_processor", None) for kind in ("image", "video"))
    image, video = ({} if part is None else part.to_dict() for part in parts)
    tokenizer = getattr(processor, "tokenizer", None)
    folder = ModelFolder(
        path=Path(name),
        processor={"processor_class": name, **processor.to_dict()},
        image=image,
        video=video or image,
        tokens={k: str(v) for k, v in getattr(tokenizer, "special_tokens_map", {}).items()},
        model={},
    )
    return _rule_of_settings(folder)


def _rule_of_settings(folder: ModelFolder) -> VisualRule:
    classes: list[type[VisualRule]] = [load_class(name) for name in VISUAL_RULES.values()]
    families = {name: family for family in classes for name in family.processors}
    name = str(folder.processor.get("processor_class"))
    if name not in families:
        raise ConfigError(
            f"{folder.path}: the rule of its processor {name} is not known: name one of the "
            f"families, or your own rule; known processors are {', '.join(sorted(families))}"
        )
    try:
        return families[name].from_folder(folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder.path}: cannot read the settings of its {name}: {error!r}"
        ) from error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRule(VisualRule):
    """`path` is "package.module:function", called as f(kind, size) -> number of visual tokens.

    `tokens` gives what the chat template writes for each kind; the processor repeats that token.
    """

    path: Named
    tokens: Mapping[str, str] = field(default_factory=lambda: {"image": "<image>"})

    def placeholders(self) -> Mapping[str, str]:
        return self.tokens

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind not in self.tokens:
            raise refuse(self.path, kind)
        num_tokens = load_function(self.path)(kind, size)
        if not isinstance(num_tokens, int) or num_tokens < 1:
            raise ConfigError(f"{self.path} must return a positive int, got {num_tokens!r}")
        return Visual(self.tokens[kind], num_tokens)


@cache
def load_function(path: str) -> Callable[[str, MediaSize], object]:
    """Return the function that 'package.module:function' names."""
    found = load_named(path)
    if not callable(found):
        raise ConfigError(f"{path!r} is not a function of the form 'package.module:function'")
    return found  # type: ignore[no-any-return]


def replace_placeholders(
    text: str, placeholders: Mapping[str, str], visuals: Mapping[str, Iterable[Visual]]
) -> str:
    """Return the text in which each placeholder became the next medium of its kind.

    As many placeholders as media must be found, else the sample says one thing and shows another.
    """
    kind_of = {token: kind for kind, token in placeholders.items()}
    waiting = {kind: list(items) for kind, items in visuals.items()}
    found = {kind: text.count(token) for kind, token in placeholders.items()}
    for kind in found.keys() | waiting.keys():
        if found.get(kind, 0) != len(waiting.get(kind, [])):
            raise SampleError(
                "placeholders and media do not match",
                f"{found.get(kind, 0)} placeholders for {len(waiting.get(kind, []))} {kind}s",
            )
    queues = {kind: iter(items) for kind, items in waiting.items()}
    if not queues:
        return text
    pattern = "|".join(re.escape(token) for token in kind_of)
    return re.sub(pattern, lambda match: next(queues[kind_of[match[0]]]).text, text)


def need_size(size: MediaSize) -> tuple[int, int]:
    """Return (height, width), or reject a medium whose index has none."""
    if size.height < 1 or size.width < 1:
        raise UnknownSize("unknown media size", f"the index says {size.height} x {size.width}")
    return size.height, size.width


def check_runs(num_runs: int) -> int:
    """Return the number of runs of visual tokens, or reject a medium that has too many."""
    if num_runs > MAX_RUNS:
        raise SampleError("too many frames", f"{num_runs} runs of visual tokens, not {MAX_RUNS}")
    return num_runs


def refuse(model: str, kind: str) -> SampleError:
    """Return the error for a kind of medium that a model does not take."""
    return SampleError(f"{model} takes no {kind}")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold an object")
    return found
