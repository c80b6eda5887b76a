"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL with random weights, small enough for a test."""

from __future__ import annotations

from typing import Any

import torch
from hf_processors import transformers

IMAGE_ID, VIDEO_ID, START_ID, END_ID = 90, 91, 92, 93
TEXT_IDS = 80
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
TOKENS = {
    "image_token_id": IMAGE_ID,
    "video_token_id": VIDEO_ID,
    "vision_start_token_id": START_ID,
    "vision_end_token_id": END_ID,
}


def tiny_model(family: str, attention: str = "eager") -> Any:
    """Return a model for training on text and pixels, in evaluation mode, the same every time."""
    torch.manual_seed(0)
    config, build = _config(family)
    config._attn_implementation = attention
    model = build(config)
    model.set_attn_implementation(attention)
    return model.eval()


def _config(family: str) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = {**TEXT, "rope_parameters": rope, "rope_scaling": rope}
    vision: dict[str, Any] = {"depth": 1, "num_heads": 2, "patch_size": 2, "hidden_size": 16}
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
    if family == "qwen2_vl":
        vision |= {"embed_dim": 16, "hidden_size": 32}
    else:
        vision |= {"intermediate_size": 24, "out_hidden_size": 32}
    if family == "qwen2_5_vl":
        vision |= {"window_size": 8, "fullatt_block_indexes": [0], "tokens_per_second": 2}
    if family == "qwen3_vl":
        text["head_dim"] = 8
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    library = transformers()
    config = getattr(library, f"{name}Config")(text_config=text, vision_config=vision, **TOKENS)
    return config, getattr(library, f"{name}ForConditionalGeneration")
