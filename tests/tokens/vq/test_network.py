"""The network gives the codes of transformers' model, for every layout of the weights."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hf_processors import transformers
from vq_checkpoints import SMALL, SMALL_LLAMAGEN, random_tensors, write_llamagen, write_original

from shardmill.errors import ConfigError
from shardmill.tokens.vq.network import PlainTokenizer
from shardmill.tokens.vq.tokenizer import ChameleonVq, LlamaGenVq, recognise
from shardmill.tokens.vq.weights import FAMILIES, fingerprint, load_weights


@pytest.fixture(scope="module")
def chameleon() -> object:
    """transformers' model with weights that use many codes."""
    library = transformers()
    config = library.ChameleonVQVAEConfig(
        base_channels=SMALL.base_channels,
        channel_multiplier=list(SMALL.multipliers),
        latent_channels=SMALL.z_channels,
        embed_dim=SMALL.embed_dim,
        num_embeddings=SMALL.num_codes,
    )
    model = library.ChameleonVQVAE(config).eval()
    tensors = random_tensors(SMALL)
    model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("decoder.")})
    return model


def image(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=generator)


def reference_codes(model: object, pixels: torch.Tensor) -> torch.Tensor:
    scaled = pixels.permute(0, 3, 1, 2).contiguous().float() / 255 * 2 - 1
    with torch.inference_mode():
        return model.encode(scaled).image_tokens  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(3, 64, 48), (1, 32, 32), (2, 20, 36)])
def test_codes_are_those_of_transformers_for_both_layouts(
    chameleon: object, tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    pixels = image(*shape)
    expected = reference_codes(chameleon, pixels)
    write_original(tmp_path / "original")
    chameleon.save_pretrained(tmp_path / "huggingface")  # type: ignore[attr-defined]
    assert len(expected.unique()) > 10
    for name in ("original", "huggingface"):
        live = ChameleonVq(weights=str(tmp_path / name)).load("fp32", "cpu")
        codes = live.encode(pixels)
        assert codes.shape == (shape[0], shape[1] // 4, shape[2] // 4)
        assert torch.equal(codes.flatten().long(), expected)


def test_weights_inside_a_whole_model_are_found(chameleon: object, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    own = {f"model.vqmodel.{k}": v for k, v in chameleon.state_dict().items()}  # type: ignore[attr-defined]
    own["model.layers.0.mlp.weight"] = torch.zeros(3)
    safetensors.save_file(own, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path)
    assert weights.shape == SMALL
    assert not weights.has_decoder


def test_llamagen_names_lead_to_the_same_tensors(tmp_path: Path) -> None:
    tensors = write_llamagen(tmp_path / "vq.pt")
    weights = load_weights(tmp_path / "vq.pt")
    assert weights.shape == SMALL_LLAMAGEN
    assert weights.has_decoder
    assert fingerprint(weights.tensors) == fingerprint(tensors)


def test_llamagen_codes_are_nearest_by_angle(tmp_path: Path) -> None:
    tensors = write_llamagen(tmp_path / "vq.pt")
    live = LlamaGenVq(weights=str(tmp_path / "vq.pt")).load("fp32", "cpu")
    assert isinstance(live, PlainTokenizer)
    pixels = image(1, 16, 16)
    vectors = torch.nn.functional.normalize(live.vectors(pixels).reshape(-1, 8), dim=-1)
    codebook = torch.nn.functional.normalize(tensors["quantize.embedding.weight"], dim=-1)
    assert torch.equal(live.encode(pixels).flatten(), (vectors @ codebook.T).argmax(1).int())


def test_codes_decode_to_images_of_the_same_size(tmp_path: Path) -> None:
    write_original(tmp_path)
    live = ChameleonVq(weights=str(tmp_path)).load("fp32", "cpu")
    pixels = live.decode(live.encode(image(2, 24, 32)))
    assert pixels.shape == (2, 24, 32, 3)
    assert pixels.dtype == torch.uint8


def test_the_fingerprint_knows_values_and_not_layouts(chameleon: object, tmp_path: Path) -> None:
    write_original(tmp_path / "a")
    write_original(tmp_path / "same")
    write_original(tmp_path / "other", seed=1)
    a, same, other = (
        ChameleonVq(weights=str(tmp_path / name)).pinned().fingerprint
        for name in ("a", "same", "other")
    )
    assert a == same
    assert a != other


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    write_original(tmp_path)
    spec = ChameleonVq(weights=str(tmp_path)).pinned()
    write_original(tmp_path, seed=1)
    with pytest.raises(ConfigError, match="do not mix"):
        spec.load("fp32", "cpu")


def save_without(folder: Path, name: str, replacement: object = None) -> None:
    tensors = write_original(folder)
    del tensors[name]
    if replacement is not None:
        tensors[name] = replacement
    torch.save({"state_dict": tensors}, folder / "vqgan.ckpt")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_without(tmp_path, "encoder.down.1.block.0.norm2.bias")
    with pytest.raises(ConfigError, match=r"lack the tensor 'encoder\.down\.1\.block\.0\.norm2"):
        load_weights(tmp_path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    save_without(tmp_path, "encoder.mid.attn_1.q.bias", torch.zeros(3))
    with pytest.raises(ConfigError, match=r"'encoder\.mid\.attn_1\.q\.bias' is 3, not 64"):
        load_weights(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(2)}, tmp_path / "vqgan.ckpt")
    with pytest.raises(ConfigError, match="no VQ tokenizer"):
        load_weights(tmp_path)


def test_settings_that_disagree_are_refused(tmp_path: Path) -> None:
    write_original(tmp_path)
    path = tmp_path / "vqgan.yaml"
    path.write_text(path.read_text().replace("n_embed: 300", "n_embed: 8192"))
    with pytest.raises(ConfigError, match="8192"):
        load_weights(tmp_path)


class Evil:
    """Runs code when it is unpickled by a careless reader."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran-the-code"),))  # type: ignore[return-value]


def test_a_pickle_with_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": Evil()}}, tmp_path / "vqgan.ckpt")
    with pytest.raises(ConfigError, match=r"would run code .* Save its state_dict") as caught:
        load_weights(tmp_path)
    assert "weights_only" not in str(caught.value)  # torch advises to run the code after all
    assert not (tmp_path / "ran-the-code").exists()


def write_training(path: Path, *, more: object = None) -> dict[str, dict[str, torch.Tensor]]:
    """Write what LlamaGen's training stores: weights, their average, optimizers and arguments."""
    sets = {}
    for seed, name in enumerate(("model", "ema", "discriminator")):
        write_llamagen(path, seed=seed)
        sets[name] = torch.load(path, weights_only=True)["model"]
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    args = argparse.Namespace(vq_model="VQ-16", ema=True, lr=1e-4, image_size=256, more=more)
    state = {"optimizer": optimizer.state_dict(), "steps": 1000, "args": args}
    torch.save({**sets, **state}, path)
    return sets


def test_a_checkpoint_of_training_asks_which_of_its_weights_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "0001000.pt"
    sets = write_training(path)
    with pytest.raises(ConfigError, match=r"two sets of weights.*--take model.*--take ema"):
        recognise(str(path))
    prints = set()
    for take in ("ema", "model"):
        pinned = recognise(str(path), take)  # type: ignore[arg-type]
        assert isinstance(pinned, LlamaGenVq)
        assert pinned.take == take
        torch.save({"model": sets[take]}, tmp_path / "alone.pt")
        assert pinned.identity() == recognise(str(tmp_path / "alone.pt")).identity()
        assert pinned.load("fp32", "cpu").num_codes == SMALL_LLAMAGEN.num_codes
        prints.add(pinned.identity())
    assert len(prints) == 2


def test_weights_that_a_file_does_not_have_are_not_taken(tmp_path: Path) -> None:
    write_llamagen(tmp_path / "vq.pt")
    with pytest.raises(ConfigError, match="no weights named 'ema', but model: change --take"):
        recognise(str(tmp_path / "vq.pt"), "ema")
    chameleon = {name: tensor.clone() for name, tensor in random_tensors(SMALL).items()}
    pytest.importorskip("safetensors.torch").save_file(chameleon, tmp_path / "a.safetensors")
    with pytest.raises(ConfigError, match="leave out --take"):
        recognise(str(tmp_path / "a.safetensors"), "model")


def test_arguments_of_training_cannot_bring_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_training(tmp_path / "evil.pt", more=Evil())
    with pytest.raises(ConfigError, match="would run code"):
        recognise(str(tmp_path / "evil.pt"), "ema")
    assert not (tmp_path / "ran-the-code").exists()
    # Nor are other programs let in by the way.
    with pytest.raises(pickle.UnpicklingError, match=r"argparse\.Namespace"):
        write_training(tmp_path / "good.pt")
        recognise(str(tmp_path / "good.pt"), "ema")
        torch.load(tmp_path / "good.pt", weights_only=True)


def halved(write: Callable[[Path], object]) -> Callable[[Path], object]:
    def write_half(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return write_half


def safetensors_of(path: Path) -> None:
    pytest.importorskip("safetensors.torch").save_file(random_tensors(SMALL), path)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda path: path.write_bytes(b""), "it is empty"),
        (
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "git lfs pull",
        ),
        (lambda path: path.write_text("\n<!DOCTYPE html><html>log in"), "a web page"),
        (lambda path: path.write_text("weights of mine\n"), "text, beginning 'weights of mine'"),
        (lambda path: path.write_bytes(bytes(range(256)) * 9), "neither a checkpoint of torch"),
        (halved(write_llamagen), "cut short or damaged"),
        (halved(safetensors_of), "cut short"),
        (lambda path: torch.save(torch.zeros(3), path), "holds a Tensor, not named tensors"),
        (lambda path: path.mkdir(), r"holds 0 files of weights"),
        (lambda path: None, "nothing is downloaded"),
    ],
    ids=["empty", "lfs", "html", "text", "bytes", "cut", "cut-st", "tensor", "folder", "missing"],
)
def test_a_file_that_holds_no_weights_is_said_to_be_what_it_is(
    tmp_path: Path, write: Callable[[Path], object], told: str
) -> None:
    path = tmp_path / "weights.pt"
    write(path)
    with pytest.raises(ConfigError, match=told) as caught:
        recognise(str(path))
    assert str(path) in str(caught.value)


def test_weights_say_whose_they_are(tmp_path: Path) -> None:
    write_original(tmp_path / "vqgan")
    write_llamagen(tmp_path / "vq.pt")
    spec = recognise(str(tmp_path / "vqgan"))
    assert isinstance(spec, ChameleonVq)
    assert spec == ChameleonVq(weights=spec.weights).pinned()
    assert (spec.factor, spec.num_codes) == (4, 300)
    assert isinstance(recognise(str(tmp_path / "vq.pt")), LlamaGenVq)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ChameleonVq, r"of llamagen, not of chameleon: it has 'encoder\.conv_blocks\.0"),
        (LlamaGenVq, r"of chameleon, not of llamagen: it has 'encoder\.down\.0"),
    ],
)
def test_a_name_that_the_weights_contradict_is_refused(
    tmp_path: Path, kind: type[ChameleonVq | LlamaGenVq], told: str
) -> None:
    path = tmp_path / "vqgan.ckpt"
    if kind is ChameleonVq:
        write_llamagen(path)
    else:
        write_original(tmp_path)
    with pytest.raises(ConfigError, match=told):
        kind(weights=str(path)).pinned()


def test_names_of_one_family_in_the_shape_of_another_leave_it_to_the_user(tmp_path: Path) -> None:
    # transformers stores Janus so.
    tensors = random_tensors(SMALL_LLAMAGEN)
    torch.save({"state_dict": tensors}, tmp_path / "vq.pt")
    path = str(tmp_path / "vq.pt")
    with pytest.raises(ConfigError, match=r"'quant_conv\.weight' goes from 16 channels to 8"):
        recognise(path)
    pixels = image(1, 16, 16)
    plain, unit = (kind(weights=path).load("fp32", "cpu") for kind in (ChameleonVq, LlamaGenVq))
    assert not torch.equal(plain.encode(pixels), unit.encode(pixels))


def test_two_tokenizers_or_none_are_told_by_their_tensors(tmp_path: Path) -> None:
    both = {**random_tensors(SMALL), FAMILIES["llamagen"]: torch.zeros(1)}
    no_codebook = {name: t for name, t in both.items() if "quantize" not in name}
    del no_codebook[FAMILIES["llamagen"]]
    for tensors, told in (
        (both, r"two tokenizers .*encoder\.down\.0.*encoder\.conv_blocks\.0"),
        (no_codebook, r"no codebook 'quantize\.embedding\.weight'"),
        ({"encoder.conv_in.weight": torch.zeros(1)}, r"such as 'encoder\.conv_in\.weight'"),
    ):
        torch.save(tensors, tmp_path / "vq.pt")
        with pytest.raises(ConfigError, match=told):
            recognise(str(tmp_path / "vq.pt"))


def test_half_precision_needs_a_gpu(tmp_path: Path) -> None:
    write_original(tmp_path)
    with pytest.raises(ConfigError, match="use fp32"):
        ChameleonVq(weights=str(tmp_path)).load("fp16", "cpu")
