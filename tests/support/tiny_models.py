"""Models of transformers with random weights, small enough for a test, and packs for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hf_processors import transformers

from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import BuildSpec, build_pack
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL, Qwen25VL
from shardmill.train.documents import TrainPack, join_tensors

IMAGE_ID, VIDEO_ID, START_ID, END_ID = 90, 91, 92, 93
TEXT_IDS = 80
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,  # so that what a token sees moves its loss
    "pad_token_id": 0,
}
QWEN_IDS = {
    "image_token_id": IMAGE_ID,
    "video_token_id": VIDEO_ID,
    "vision_start_token_id": START_ID,
    "vision_end_token_id": END_ID,
}
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
QWEN_TEXT = {**TEXT, "rope_parameters": MROPE, "rope_scaling": MROPE}
QWEN_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 2}
SQUARES = {"image_size": 28, "patch_size": 7, "hidden_size": 32, "num_attention_heads": 2}
SQUARES |= {"intermediate_size": 48, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Family:
    """A family of models: its classes, its settings, and how its images look.

    `rule` says positions that are not plain; `side` is that of square images of four tokens, where
    images have no grids; `type_ids` is what the model calls the kinds of tokens.
    """

    name: str
    build: str
    settings: dict[str, Any]
    rule: Any = None
    side: int = 0
    type_ids: str | None = None

    def model(self, attention: str, **settings: Any) -> Any:
        """Return the model in evaluation mode, the same every time."""
        library = transformers()
        config = getattr(library, f"{self.name}Config")(**{**self.settings, **settings})
        torch.manual_seed(0)
        model = getattr(library, self.build)._from_config(config, attn_implementation=attention)
        return model.eval()

    def rows(self, seed: int, lengths: Sequence[int] = (9, 1, 30, 17, 5)) -> list[TrainPack]:
        """Return documents, each as a pack of its own; all but the first two have images."""
        rng = random.Random(seed)
        takes_images = self.rule is not None or self.side
        return [
            self._document(rng, length, 1 + n % 2 if takes_images and n > 1 else 0)
            for n, length in enumerate(lengths)
        ]

    def _document(self, rng: random.Random, length: int, num_images: int) -> TrainPack:
        text = [rng.randrange(1, TEXT_IDS) for _ in range(length)]
        ids, media, tensors = text[: length // 2], [], []
        for number in range(num_images):
            grid = rng.choice([(1, 4, 4), (1, 8, 4), (1, 8, 8)]) if self.rule else (1, 2, 2)
            count = int(np.prod(grid)) // 4 if self.rule else 4
            ids += [START_ID]
            span = MediaSpan(
                name=f"{number}", kind="image", position=len(ids), num_tokens=count, grid=grid
            )
            media.append(span)
            ids += [IMAGE_ID] * count + [END_ID]
            tensors.append(self._pixels(rng, grid))
        ids += text[length // 2 :]
        # Loss on two of three tokens of the text.
        loss = [(n, 1) for n, token in enumerate(ids) if token < TEXT_IDS and n % 3]
        row = TokenRow(
            key=f"{length}",
            ids=np.array(ids, np.int64),
            loss=np.array(loss, np.int64).reshape(-1, 2),
            media=tuple(media),
        )
        return TrainPack(0, build_pack([row], self.spec()), join_tensors(tensors))

    def spec(self, alignment: int = 1) -> BuildSpec:
        return BuildSpec(positions=self.rule, alignment=alignment)

    def _pixels(self, rng: random.Random, grid: tuple[int, ...]) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        if self.side:
            shape = (1, 3, self.side, self.side)
            return {"pixel_values": torch.randn(shape, generator=generator)}
        values = torch.randn(int(np.prod(grid)), 3 * 2 * 2 * 2, generator=generator)
        return {"pixel_values": values, "image_grid_thw": torch.tensor([grid])}


def row_of(pack: TrainPack) -> TokenRow:
    """Return the only document of a pack."""
    (length,) = pack.pack.layout.lengths.tolist()
    places = np.flatnonzero(pack.pack.loss_mask)
    return TokenRow(
        key=pack.pack.keys[0],
        ids=pack.pack.input_ids[:length],
        loss=np.stack([places, np.ones_like(places)], 1),
        media=tuple(medium.span for medium in pack.pack.media),
    )


def join_packs(family: Family, packs: Sequence[TrainPack], alignment: int = 1) -> TrainPack:
    """Return one pack of all these documents."""
    built = build_pack([row_of(pack) for pack in packs], family.spec(alignment))
    return TrainPack(0, built, join_tensors([pack.tensors for pack in packs]))


def _qwen(name: str, rule: Any, vision: dict[str, Any], **text: Any) -> Family:
    settings = {"text_config": {**QWEN_TEXT, **text}, "vision_config": {**QWEN_VISION, **vision}}
    build = f"{name}ForConditionalGeneration"
    return Family(name, build, {**settings, **QWEN_IDS}, rule, type_ids="mm_token_type_ids")


_QWEN2_TEXT = {**TEXT, "model_type": "qwen2"}
_GEMMA_TEXT = {**TEXT, "head_dim": 16, "sliding_window": 8, "layer_types": None}
_GEMMA_TEXT |= {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "qwen2": Family("Qwen2", "Qwen2ForCausalLM", TEXT),
    "llama": Family("Llama", "LlamaForCausalLM", TEXT),
    "mistral": Family("Mistral", "MistralForCausalLM", {**TEXT, "sliding_window": 6}),
    "qwen2_vl": _qwen("Qwen2VL", Qwen2VL(), {"embed_dim": 32, "hidden_size": 64}),
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VL",
        Qwen25VL(),
        {
            "intermediate_size": 24,
            "out_hidden_size": 64,
            "hidden_size": 32,
            "window_size": 8,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
    ),
    "qwen3_vl": _qwen(
        "Qwen3VL",
        Qwen3VL(),
        {
            "intermediate_size": 24,
            "out_hidden_size": 64,
            "hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        head_dim=16,
    ),
    "internvl": Family(
        "InternVL",
        "InternVLForConditionalGeneration",
        {
            "text_config": _QWEN2_TEXT,
            "vision_config": {**SQUARES, "image_size": [28, 28], "patch_size": [7, 7]},
            "image_token_id": IMAGE_ID,
            "image_seq_length": 4,
        },
        side=28,
    ),
    "gemma3": Family(
        "Gemma3",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": _GEMMA_TEXT,
            "vision_config": SQUARES,
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE_ID,
            "image_token_id": IMAGE_ID,
            "boi_token_index": START_ID,
            "eoi_token_index": END_ID,
        },
        side=28,
        type_ids="token_type_ids",
    ),
}
