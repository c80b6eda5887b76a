"""The one page of names: what `kind = "..."` may say, and which class it means.

A user's own class needs no entry: `kind = "package.module:Class"` works everywhere. A plugin is a
frozen dataclass; its fields are its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.errors import ConfigError
from shardmill.model.codec import from_plain

Table = Mapping[str, str]

SOURCES: Table = {
    "folder": "shardmill.sources.folder:FolderSource",
    "table": "shardmill.sources.table:TableSource",
    "tars": "shardmill.sources.tars:TarSource",
    "nemo": "shardmill.sources.nemo:NemoSource",
    "nested": "shardmill.sources.nested:NestedSource",
    "columns": "shardmill.sources.columnjson:ColumnsSource",
}

SHAPES: Table = {
    "pair": "shardmill.sources.shapes.pair:PairShape",
    "liquid": "shardmill.sources.shapes.pair:LiquidShape",
    "llava": "shardmill.sources.shapes.llava:LlavaShape",
    "cambrian": "shardmill.sources.shapes.llava:LlavaShape",
    "messages": "shardmill.sources.shapes.messages:MessagesShape",
    "mmc4": "shardmill.sources.shapes.mmc4:Mmc4Shape",
    "text": "shardmill.sources.shapes.text:TextShape",
    "document": "shardmill.sources.shapes.document:DocumentShape",
    "video": "shardmill.sources.shapes.video:VideoShape",
    "webvid": "shardmill.sources.shapes.video:WebVidShape",
    "internvid": "shardmill.sources.shapes.video:InternVidShape",
    "hd-vila": "shardmill.sources.shapes.video:HdVilaShape",
    "ego4d": "shardmill.sources.shapes.video:Ego4dShape",
    "how2link": "shardmill.sources.shapes.video:How2LinkShape",
    "howto-interlink": "shardmill.sources.shapes.interlink:HowtoInterlinkShape",
    "videochat2": "shardmill.sources.shapes.videochat:VideoChat2Shape",
    "unicontrol": "shardmill.sources.shapes.control:UniControlShape",
    "merlin": "shardmill.sources.shapes.merlin:MerlinShape",
    "prompt": "shardmill.sources.shapes.prompt:PromptShape",
}

READERS: Table = {
    "megatron": "shardmill.formats.read_megatron:MegatronReader",
    "packed-tars": "shardmill.formats.read_tars:TarReader",
    "unidisc": "shardmill.formats.read_unidisc:UnidiscReader",
}

TEXT_TOKENIZERS: Table = {
    "huggingface": "shardmill.tokens.text_hf:HuggingFaceText",
    "sentencepiece": "shardmill.tokens.text_sentencepiece:SentencePieceText",
    "tiktoken": "shardmill.tokens.text_tiktoken:TiktokenText",
}

TEMPLATES: Table = {
    "text": "shardmill.tokens.template_text:PlainText",
    "chat": "shardmill.tokens.template_chat:Chat",
    "turns": "shardmill.tokens.template_turns:Turns",
    "captions": "shardmill.tokens.template_captions:Captions",
    "t2i": "shardmill.tokens.template_pairs:TextToImage",
    "i2t": "shardmill.tokens.template_pairs:ImageToText",
    "mixed": "shardmill.tokens.template_pairs:MixedPairs",
    "pair": "shardmill.tokens.template_pairs:CaptionPair",
    "interleaved": "shardmill.tokens.template_interleaved:Interleaved",
}

IMAGE_TOKENIZERS: Table = {
    "chameleon": "shardmill.tokens.vq.specs:ChameleonVq",
    "llamagen": "shardmill.tokens.vq.specs:LlamaGenVq",
    "huggingface": "shardmill.tokens.vq.huggingface:HuggingFaceVq",
}

GEOMETRIES: Table = {
    "square": "shardmill.media.geometry:Square",
    "buckets": "shardmill.media.geometry:Buckets",
    "native": "shardmill.media.geometry:Native",
}

CODE_SOURCES: Table = {
    "field": "shardmill.tokens.codes:FieldCodes",
    "shards": "shardmill.tokens.vq.source:ShardCodes",
}

FRAME_SAMPLERS: Table = {
    "whole": "shardmill.media.framesamplers:WholeVideo",
    "all": "shardmill.media.framesamplers:AllFrames",
    "uniform": "shardmill.media.framesamplers:Uniform",
    "fps": "shardmill.media.framesamplers:Fps",
    "keyframes": "shardmill.media.framekeys:Keyframes",
    "nearest": "shardmill.media.framekeys:NearestKeyframes",
    "scenes": "shardmill.media.framescenes:Scenes",
    "frames": "shardmill.media.frameexplicit:Explicit",
}

VISUAL_RULES: Table = {
    "qwen2-vl": "shardmill.tokens.visual.qwen:Qwen2VL",
    "qwen2.5-vl": "shardmill.tokens.visual.qwen:Qwen2VL",
    "qwen3-vl": "shardmill.tokens.visual.qwen:Qwen3VL",
    "llava": "shardmill.tokens.visual.fixed:Llava",
    "gemma3": "shardmill.tokens.visual.fixed:Gemma3",
    "internvl": "shardmill.tokens.visual.tiled:InternVL",
    "function": "shardmill.tokens.visual.function:FunctionRule",
}

FILTERS: Table = {
    "text_length": "shardmill.sources.filters:TextLength",
    "words": "shardmill.sources.filters:WithoutWords",
    "picture_size": "shardmill.sources.filters:PictureSize",
    "aspect_ratio": "shardmill.sources.filters:AspectRatio",
    "media": "shardmill.sources.filters:HasMedia",
    "duplicates": "shardmill.sources.filters:Duplicates",
}

FORMATS: Table = {
    "megatron": "shardmill.formats.megatron:MegatronFormat",
    "hf": "shardmill.formats.hf:HuggingFaceFormat",
    "liquid": "shardmill.formats.liquid:LiquidFormat",
    "liquid-pairs": "shardmill.formats.liquid_pairs:LiquidPairsFormat",
    "tensordict": "shardmill.formats.tensordict:TensorDictFormat",
    "tensordict-pairs": "shardmill.formats.tensordict_pairs:PairsFormat",
    "webdataset": "shardmill.formats.webdataset:WebDatasetFormat",
    "energon": "shardmill.formats.energon:EnergonFormat",
    "mds": "shardmill.formats.mds:MdsFormat",
    "litdata": "shardmill.formats.litdata:LitDataFormat",
}

ENGINES: Table = {
    "local": "shardmill.run.local:Local",
    "slurm": "shardmill.run.slurm:Slurm",
    "ray": "shardmill.run.ray_engine:Ray",
}


def resolve(table: Table, kind: str) -> str:
    """Return 'module:Class' for a name of the table, or the name itself if it has that form."""
    if kind in table:
        return table[kind]
    if ":" in kind:
        return kind
    known = ", ".join(sorted(table))
    raise ConfigError(f"unknown kind {kind!r}: use one of {known}, or 'package.module:Class'")


def build(table: Table, plain: Mapping[str, Any], *, where: str = "spec") -> Any:
    """Return the plugin that `{"kind": name, field: value, ...}` describes."""
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{where} needs a kind: one of {', '.join(sorted(table))}")
    return from_plain({**plain, "kind": resolve(table, kind)}, where=where)
