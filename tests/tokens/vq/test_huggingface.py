"""Vision tokenizers of transformers, by their folder, give the codes of their own `encode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_processors import transformers

from shardmill.errors import ConfigError
from shardmill.tokens.vq.huggingface import HuggingFaceVq
from shardmill.tokens.vq.tokenizer import recognise

SIDE = 32


def emu3() -> Any:
    library = transformers()
    config = library.Emu3VQVAEConfig(
        codebook_size=64,
        embed_dim=4,
        latent_channels=4,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        attn_resolutions=[],
        hidden_size=32,
        num_attention_heads=1,
    )
    return library.Emu3VQVAE(config).eval()


def janus() -> Any:
    library = transformers()
    config = library.models.janus.configuration_janus.JanusVQVAEConfig(
        num_embeddings=64,
        embed_dim=8,
        latent_channels=16,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        num_patches=SIDE // 2,
    )
    return library.JanusVQVAE(config).eval()


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("make", [emu3, janus], ids=lambda make: make.__name__)
def test_codes_are_those_of_the_model(make: Any, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    spec = recognise(str(tmp_path))
    assert spec == HuggingFaceVq(weights=str(tmp_path)).pinned()
    live = spec.load("fp32", "cpu")
    assert (spec.factor, spec.num_codes) == (live.factor, live.num_codes)
    scaled = images().permute(0, 3, 1, 2).float() / 255 * 2 - 1
    sizes = {"image_sizes": torch.tensor([[SIDE, SIDE]] * 2)} if make is emu3 else {}
    with torch.inference_mode():
        expected = model.encode(scaled, **sizes).image_tokens
    expected = torch.stack(list(expected)) if isinstance(expected, list) else expected
    codes = live.encode(images())
    assert live.num_codes == 64
    assert codes.shape == (2, SIDE // live.factor, SIDE // live.factor)
    assert torch.equal(codes.flatten().long(), expected.flatten().long())
    assert live.decode(codes).shape == (2, SIDE, SIDE, 3)


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    janus().save_pretrained(tmp_path)
    spec = HuggingFaceVq(weights=str(tmp_path)).pinned()
    janus().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="do not mix"):
        spec.load("fp32", "cpu")


def test_what_is_no_vq_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        HuggingFaceVq(weights=str(tmp_path)).pinned()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="'llama'"):
        HuggingFaceVq(weights=str(tmp_path)).pinned()


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fp32 only"):
        HuggingFaceVq(weights=str(tmp_path)).load("fp16", "cpu")
