"""The one page of names: what `kind = "..."` may say, and which class it means.

A user's own class needs no entry: `kind = "package.module:Class"` works everywhere. A plugin is a
frozen dataclass; its fields are its configuration.

A name may be a preset: a class with some of its fields, "module:Class,field=value". It is stored as
the class with all its fields.

Stored specs name a class as "table/name", such as "template/chat", so that a module can move
without changing a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from shardmill.errors import ConfigError, near

Table = Mapping[str, str]

STAGES: Table = {
    "ingest": "shardmill.stages.ingest:Ingest",
    "index": "shardmill.stages.index:IndexTars",
    "filter": "shardmill.stages.filter:FilterSamples",
    "frames": "shardmill.stages.frames:SampleFrames",
    "codes": "shardmill.stages.codes:EncodeImages",
    "adopt-codes": "shardmill.stages.adopt:AdoptCodes",
    "tokenize": "shardmill.stages.tokenize:Tokenize",
    "tokenize-text": "shardmill.stages.tokenize:TokenizeText",
    "adopt-tokens": "shardmill.stages.adopt:AdoptTokens",
    "measure": "shardmill.stages.measure:Measure",
    "pack": "shardmill.stages.pack:Materialize",
    "export": "shardmill.stages.export:ExportShards",
    "remove": "shardmill.stages.remove:RemoveSamples",
}

SOURCES: Table = {
    "folder": "shardmill.sources.folder:FolderSource",
    "table": "shardmill.sources.tables:TableSource",
    "tars": "shardmill.sources.tars:TarSource",
    "nemo": "shardmill.sources.nemo:NemoSource",
    "nested": "shardmill.sources.tables:NestedSource",
    "columns": "shardmill.sources.tables:ColumnsSource",
}

SHAPES: Table = {
    "pair": "shardmill.sources.shapes.general:PairShape",
    "liquid": "shardmill.sources.shapes.datasets:LiquidShape",
    "llava": "shardmill.sources.shapes.general:LlavaShape",
    "cambrian": "shardmill.sources.shapes.general:LlavaShape",
    "messages": "shardmill.sources.shapes.general:MessagesShape",
    "finevision": "shardmill.sources.shapes.datasets:FineVisionShape",
    "cauldron": "shardmill.sources.shapes.datasets:FineVisionShape",
    "instruction": "shardmill.sources.shapes.instructions:InstructionShape",
    "alpaca": "shardmill.sources.shapes.instructions:InstructionShape",
    "points": "shardmill.sources.shapes.instructions:PointsShape",
    "edit": "shardmill.sources.shapes.instructions:EditShape",
    "interleaved": "shardmill.sources.shapes.datasets:InterleavedShape",
    "obelics": "shardmill.sources.shapes.datasets:InterleavedShape",
    "mmc4": "shardmill.sources.shapes.datasets:Mmc4Shape",
    "text": "shardmill.sources.shapes.general:TextShape",
    "document": "shardmill.sources.shapes.general:DocumentShape",
    "video": "shardmill.sources.shapes.general:VideoShape",
    "webvid": "shardmill.sources.shapes.datasets:WebVidShape",
    "internvid": "shardmill.sources.shapes.datasets:InternVidShape",
    "hd-vila": "shardmill.sources.shapes.datasets:HdVilaShape",
    "ego4d": "shardmill.sources.shapes.datasets:Ego4dShape",
    "how2link": "shardmill.sources.shapes.datasets:How2LinkShape",
    "howto-interlink": "shardmill.sources.shapes.datasets:HowtoInterlinkShape",
    "videochat2": "shardmill.sources.shapes.datasets:VideoChat2Shape",
    "unicontrol": "shardmill.sources.shapes.datasets:UniControlShape",
    "merlin": "shardmill.sources.shapes.datasets:MerlinShape",
    "prompt": "shardmill.sources.shapes.datasets:PromptShape",
}

READERS: Table = {
    "megatron": "shardmill.formats.megatron:MegatronReader",
    "unidisc": "shardmill.formats.adapters.unidisc:UnidiscReader",
    "packed-tars": "shardmill.formats.webdataset:TarReader",
}

TEXT_TOKENIZERS: Table = {
    "huggingface": "shardmill.tokens.text.huggingface:HuggingFaceText",
    "sentencepiece": "shardmill.tokens.text.sentencepiece:SentencePieceText",
    "tiktoken": "shardmill.tokens.text.tiktoken:TiktokenText",
}

TEMPLATES: Table = {
    "text": "shardmill.tokens.templates.template:PlainText",
    "chat": "shardmill.tokens.templates.chat:Chat",
    "turns": "shardmill.tokens.templates.documents:Turns",
    "captions": "shardmill.tokens.templates.documents:Captions",
    "mixed": "shardmill.tokens.templates.pairs:MixedPairs",
    "t2i": "shardmill.tokens.templates.pairs:MixedPairs,t2i_ratio=1",
    "i2t": "shardmill.tokens.templates.pairs:MixedPairs,t2i_ratio=0",
    "liquid": "shardmill.tokens.templates.pairs:MixedPairs,joined=false,unconditional=0.1,"
    'instructions=null,plain={"bos":true,"eos":false}',
    "pair": "shardmill.tokens.templates.pairs:CaptionPair",
    "interleaved": "shardmill.tokens.templates.documents:Interleaved",
}

IMAGE_TOKENIZERS: Table = {
    "chameleon": "shardmill.tokens.vq.tokenizer:ChameleonVq",
    "llamagen": "shardmill.tokens.vq.tokenizer:LlamaGenVq",
    "huggingface": "shardmill.tokens.vq.huggingface:HuggingFaceVq",
}

GEOMETRIES: Table = {
    "square": "shardmill.media.geometry:Square",
    "buckets": "shardmill.media.geometry:Buckets",
    "native": "shardmill.media.geometry:Native",
}

CODE_SOURCES: Table = {
    "field": "shardmill.tokens.codes:FieldCodes",
    "shards": "shardmill.tokens.codes:ShardCodes",
}

FRAME_SAMPLERS: Table = {
    "whole": "shardmill.media.samplers:WholeVideo",
    "all": "shardmill.media.samplers:AllFrames",
    "uniform": "shardmill.media.samplers:Uniform",
    "fps": "shardmill.media.samplers:Fps",
    "keyframes": "shardmill.media.samplers:Keyframes",
    "nearest": "shardmill.media.samplers:NearestKeyframes",
    "scenes": "shardmill.media.samplers:Scenes",
    "frames": "shardmill.media.samplers:Explicit",
    "model": "shardmill.tokens.visual.rule:ModelFrames",
}

VISUAL_RULES: Table = {
    "qwen2-vl": "shardmill.tokens.visual.qwen:Qwen2VL",
    "qwen2.5-vl": "shardmill.tokens.visual.qwen:Qwen25VL",
    "qwen3-vl": "shardmill.tokens.visual.qwen:Qwen3VL",
    "llava": "shardmill.tokens.visual.llava:Llava",
    "gemma3": "shardmill.tokens.visual.gemma3:Gemma3",
    "internvl": "shardmill.tokens.visual.internvl:InternVL",
    "function": "shardmill.tokens.visual.rule:FunctionRule",
}

FILTERS: Table = {
    "text_length": "shardmill.sources.filters:TextLength",
    "words": "shardmill.sources.filters:WithoutWords",
    "image_size": "shardmill.sources.filters:ImageSize",
    "aspect_ratio": "shardmill.sources.filters:AspectRatio",
    "media": "shardmill.sources.filters:HasMedia",
    "duplicates": "shardmill.sources.filters:Duplicates",
}

FORMATS: Table = {
    "megatron": "shardmill.formats.megatron:MegatronFormat",
    "hf": "shardmill.formats.huggingface:HuggingFaceFormat",
    "liquid": "shardmill.formats.adapters.liquid:LiquidFormat",
    "liquid-pairs": "shardmill.formats.adapters.liquid:LiquidPairsFormat",
    "tensordict": "shardmill.formats.adapters.tensordict:TensorDictFormat",
    "tensordict-labels": "shardmill.formats.adapters.tensordict:LabelsFormat",
    "tensordict-pairs": "shardmill.formats.adapters.tensordict:PairsFormat",
    "webdataset": "shardmill.formats.webdataset:WebDatasetFormat",
    "vdp": "shardmill.formats.adapters.videopipeline:VideoPipelineFormat",
    "energon": "shardmill.formats.energon:EnergonFormat",
    "mds": "shardmill.formats.mds:MdsFormat",
    "litdata": "shardmill.formats.litdata:LitDataFormat",
}

PACKERS: Table = {
    "auto": "shardmill.packing.fit:FewestPacks",
    "histogram": "shardmill.packing.fit:BestFit",
    "window": "shardmill.packing.fit:WindowFit",
    "neighbours": "shardmill.packing.fit:Neighbours",
}

BALANCERS: Table = {
    "halving": "shardmill.packing.balance:Halving",
    "shuffled": "shardmill.packing.balance:Shuffled",
}

ENGINES: Table = {
    "local": "shardmill.running.local:Local",
    "slurm": "shardmill.running.slurm:Slurm",
    "ray": "shardmill.running.ray:Ray",
}


TABLES: Mapping[str, Table] = {
    "stage": STAGES,
    "source": SOURCES,
    "shape": SHAPES,
    "filter": FILTERS,
    "reader": READERS,
    "text": TEXT_TOKENIZERS,
    "template": TEMPLATES,
    "image": IMAGE_TOKENIZERS,
    "geometry": GEOMETRIES,
    "codes": CODE_SOURCES,
    "frames": FRAME_SAMPLERS,
    "visual": VISUAL_RULES,
    "format": FORMATS,
    "packer": PACKERS,
    "balancer": BALANCERS,
    "engine": ENGINES,
}


def resolve(table: Table, kind: str, where: str) -> str:
    """Return 'module:Class' for a name of the table, or the name itself if it has that form."""
    if kind in table:
        return table[kind].partition(",")[0]
    if ":" in kind:
        return kind
    raise ConfigError(
        f"{where}: unknown kind {kind!r}{near(kind, table)}\n"
        f"Use one of {', '.join(sorted(table))}, or your own 'package.module:Class'"
    )


def resolve_stored(kind: str) -> str | None:
    """Return 'module:Class' for a stored "table/name", None for anything else."""
    table, slash, name = kind.partition("/")
    return TABLES.get(table, {}).get(name) if slash else None


@cache
def stored_names() -> Mapping[str, str]:
    """Return {'module:Class': "table/name"}; of two names of one class the first one counts."""
    names: dict[str, str] = {}
    for table, entries in TABLES.items():
        for name, path in entries.items():
            if "," not in path:  # a preset is stored as its class
                names.setdefault(path, f"{table}/{name}")
    return names
