"""The visual rule of a model folder: what its processor's configuration files say.

Files are taken as the processors take them: `processor_config.json` with nested settings first,
then `video_preprocessor_config.json` for videos, then `preprocessor_config.json`. A setting that
no file gives has the default of the processor's class, which is not always that of the published
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from shardmill.errors import ConfigError
from shardmill.tokens.visual.fixed import Gemma3, Llava
from shardmill.tokens.visual.qwen import (
    Qwen2VL,
    Qwen3Images,
    Qwen3Videos,
    Qwen3VL,
    QwenImages,
    QwenVideos,
)
from shardmill.tokens.visual.rule import VisualRule
from shardmill.tokens.visual.tiled import InternVL

QWEN_IMAGE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
QWEN2_VIDEO = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}
QWEN3_VIDEO = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """The settings of a model folder that say how its processor treats media."""

    path: Path
    processor: Mapping[str, Any]
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    tokens: Mapping[str, Any]

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


def read_model_folder(path: Path) -> ModelFolder:
    """Return what the configuration files of a model folder say."""
    processor = _read(path / "processor_config.json")
    image = _read(path / "preprocessor_config.json")
    video = _read(path / "video_preprocessor_config.json")
    if not processor and not image:
        raise ConfigError(f"{path} has no processor_config.json and no preprocessor_config.json")
    return ModelFolder(
        path=path,
        processor={**_only(image, "processor_class"), **processor},
        image=processor.get("image_processor") or image,
        video=processor.get("video_processor") or video or image,
        tokens=_read(path / "tokenizer_config.json"),
    )


def rule_of_folder(path: Path) -> VisualRule:
    """Return the visual rule of the model in a folder."""
    folder = read_model_folder(path)
    name = str(folder.processor.get("processor_class"))
    if name not in FAMILIES:
        raise ConfigError(
            f"{path}: the rule of its processor {name} is not known: name one of the families, or "
            f"your own rule; known processors are {', '.join(sorted(FAMILIES))}"
        )
    try:
        return FAMILIES[name](folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot read the settings of its {name}: {error!r}") from error


def _qwen2(folder: ModelFolder) -> VisualRule:
    video, sampled = folder.video, bool(folder.video.get("do_sample_frames"))
    return Qwen2VL(
        images=QwenImages(**_image_settings(folder.image)),
        videos=QwenVideos(
            **_patches(video, 14),
            **_pixels({**QWEN2_VIDEO, **_limits(video)}),
            **_frames(video),
            fps=_rate(video.get("fps")) if sampled else None,
            num_frames=video.get("num_frames") if sampled else None,
            max_video_tokens=video.get("max_video_tokens") or 128_000,
        ),
    )


def _qwen3(folder: ModelFolder) -> VisualRule:
    video, sampled = folder.video, bool(folder.video.get("do_sample_frames", True))
    return Qwen3VL(
        images=Qwen3Images(**_image_settings(folder.image)),
        videos=Qwen3Videos(
            **_patches(video, 16),
            **_pixels({**QWEN3_VIDEO, **(video.get("size") or {})}),
            **_frames(video),
            fps=_rate(video.get("fps", 2)) if sampled else None,
            num_frames=video.get("num_frames") if sampled else None,
            max_video_tokens=video.get("max_video_tokens") or 768,
        ),
    )


def _llava(folder: ModelFolder) -> VisualRule:
    image = folder.image
    cropped = image.get("do_center_crop", "crop_size" in image)
    size = image["crop_size"] if cropped else image["size"]
    tall, wide = (size, size) if isinstance(size, int) else (size["height"], size["width"])
    return Llava(
        height=tall,
        width=wide,
        patch_size=folder.need("patch_size"),
        num_additional=folder.processor.get("num_additional_image_tokens", 0),
        select=folder.processor.get("vision_feature_select_strategy") or "full",
        token=folder.token("image_token", folder.processor.get("image_token", "<image>")),
    )


def _internvl(folder: ModelFolder) -> VisualRule:
    image, video = folder.image, folder.video
    size = image.get("size") or {"height": 384, "width": 384}
    if size["height"] != size["width"]:
        raise ConfigError(f"{folder.path}: tiles must be square, got {size}")
    sampled = bool(video.get("do_sample_frames"))
    if sampled and video.get("num_frames") is None:
        raise ConfigError(f"{folder.path}: set num_frames; a rate of frames is not known here")
    return InternVL(
        tile_size=size["height"],
        tokens_per_tile=folder.processor.get("image_seq_length", 256),
        min_tiles=image.get("min_patches", 1),
        max_tiles=image.get("max_patches", 12),
        num_frames=video.get("num_frames") if sampled else None,
        start=folder.token("start_image_token", "<img>"),
        token=folder.token("context_image_token", "<IMG_CONTEXT>"),
        end=folder.token("end_image_token", "</img>"),
        video_token=folder.token("video_token", "<video>"),
    )


def _gemma3(folder: ModelFolder) -> VisualRule:
    return Gemma3(
        num_tokens=folder.processor.get("image_seq_length", 256),
        start=folder.token("boi_token", "<start_of_image>"),
        token=folder.token("image_token", "<image_soft_token>"),
        end=folder.token("eoi_token", "<end_of_image>"),
    )


FAMILIES: Mapping[str, Callable[[ModelFolder], VisualRule]] = {
    "Qwen2VLProcessor": _qwen2,
    "Qwen2_5_VLProcessor": _qwen2,
    "Qwen3VLProcessor": _qwen3,
    "LlavaProcessor": _llava,
    "InternVLProcessor": _internvl,
    "Gemma3Processor": _gemma3,
}


def _image_settings(image: Mapping[str, Any]) -> dict[str, Any]:
    patches = _only(_patches(image, 14), "patch_size", "merge_size")
    return {**patches, **_pixels({**QWEN_IMAGE, **_limits(image)})}


def _patches(settings: Mapping[str, Any], patch_size: int) -> dict[str, Any]:
    defaults = {"patch_size": patch_size, "merge_size": 2, "temporal_patch_size": 2}
    return {**defaults, **_only(settings, *defaults)}


def _frames(settings: Mapping[str, Any]) -> dict[str, Any]:
    return _only(settings, "min_frames", "max_frames", "cap_pixels_per_frame")


def _limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    # Older files have min_pixels and max_pixels, which win over the size beside them.
    limits = dict(settings.get("size") or {})
    for edge, name in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if settings.get(name) is not None:
            limits[edge] = settings[name]
    return limits


def _pixels(edges: Mapping[str, Any]) -> dict[str, Any]:
    return {"min_pixels": edges["shortest_edge"], "max_pixels": edges["longest_edge"]}


def _rate(fps: Any) -> float | None:
    return None if fps is None else float(fps)


def _only(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names if settings.get(name) is not None}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold an object")
    return found
