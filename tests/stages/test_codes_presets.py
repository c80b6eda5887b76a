"""Presets give the pixels and codes of the programs they are named after.

Each original is written here in a few lines of the libraries that it uses, from a description of
what it does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from hf_processors import transformers as load_transformers
from sample_folder import write_sample_folder
from vq_checkpoints import SMALL, SMALL_LLAMAGEN, write_llamagen, write_original

import shardmill as sm
from shardmill.errors import ConfigError, Filtered, StaleError
from shardmill.media.image import decode_image, image_size, resize_crop
from shardmill.model.sample import Document, Sample, Segment
from shardmill.stages.codes import PRESETS

Image = pytest.importorskip("PIL.Image")
PHOTOS = Path(__file__).parents[2] / "demo" / "data" / "photos"
MODES = [
    "RGB",
    "L",
    "1",
    "LA",
    "P",
    "P+t",
    "P+many",
    "RGBA",
    "CMYK",
    "I;16",
    "I;16+t",
    "F",
    "RGB+t",
]


def unidisc(image: Any, side: int) -> Any:
    load_transformers()  # so that torchvision can be imported
    transforms = pytest.importorskip("torchvision.transforms")
    image = image.convert("RGB")
    return transforms.CenterCrop(side)(transforms.Resize(side)(image))


def llamagen(image: Any, side: int) -> Any:
    image = image.convert("RGB")
    while min(image.size) >= 2 * side:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = side / min(image.size)
    size = round(image.width * scale), round(image.height * scale)
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def liquid(image: Any, side: int) -> Any | None:
    image = image.convert("RGB")
    if max(image.size) / min(image.size) > 2:
        return None
    factor = min(image.size) / side
    size = int(image.width / factor), int(image.height / factor)
    image = image.resize(size, Image.Resampling.LANCZOS)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def chameleon(image: Any, side: int) -> np.ndarray:
    transformers = load_transformers()
    processor = transformers.ChameleonImageProcessorPil(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )
    found = processor(image, do_rescale=False, do_normalize=False)["pixel_values"][0]
    return np.moveaxis(np.asarray(found), 0, -1)


ORIGINALS: dict[str, Callable[[Any, int], Any]] = {
    "unidisc": unidisc,
    "llamagen": llamagen,
    "liquid": liquid,
    "chameleon": chameleon,
}


def ours(content: bytes, name: str, side: int) -> np.ndarray | None:
    preset = PRESETS[name]
    try:
        fit = replace(preset.geometry, resolution=side).fit(*image_size(content, preset.decoding))
    except Filtered:
        return None
    return resize_crop(decode_image(content, decoding=preset.decoding), fit)


def assert_equal(content: bytes, name: str, side: int) -> None:
    with Image.open(io.BytesIO(content)) as image:
        expected = ORIGINALS[name](image, side)
    found = ours(content, name, side)
    if expected is None or found is None:
        assert expected is found
    else:
        assert np.array_equal(found, np.asarray(expected)), (name, image)


def saved(image: Any, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def noise(rng: Any, width: int, height: int, channels: int = 3) -> np.ndarray:
    return rng.integers(0, 256, (height, width, channels)).astype(np.uint8)


def in_mode(mode: str, rng: Any, width: int, height: int) -> bytes:
    """Return a file whose image opens in this mode; "+t" has a transparent colour."""
    rgba = Image.fromarray(noise(rng, width, height, 4))
    kind, _, transparent = mode.partition("+")
    options = {"transparency": (rgba.getpixel((0, 0))[:3]) if kind == "RGB" else 3}
    if kind == "I;16":
        deep = rng.integers(0, 65536, (height, width)).astype(np.uint16) >> int(rng.integers(0, 9))
        image, options = Image.fromarray(deep), {"transparency": int(deep[0, 0])}
    elif kind == "F":
        image = Image.fromarray(rng.normal(128, 90, (height, width)).astype(np.float32))
    elif kind == "P":
        image = rgba.convert("RGB").quantize(60)
        options = {"transparency": bytes(range(0, 240, 4))} if transparent == "many" else options
    else:
        image = rgba if kind == "RGBA" else rgba.convert("RGB").convert(kind)
    if kind == "LA":
        image.putalpha(rgba.getchannel("A"))
    if kind in ("CMYK", "F"):
        return saved(image, "TIFF")
    return saved(image, "PNG", **(options if transparent else {}))


def sizes(rng: Any, largest: int) -> tuple[int, int]:
    width, height = (int(np.exp(x)) for x in rng.uniform(0, np.log(largest), 2))
    if rng.random() < 0.6:  # near a square, so that Liquid takes it, too
        height = max(1, int(width * rng.uniform(0.45, 2.2)))
    return width, height


@pytest.mark.parametrize("name", PRESETS)
def test_every_size_has_the_pixels_of_the_original(name: str) -> None:
    rng = np.random.default_rng(0)
    for number in range(60):
        width, height = sizes(rng, 600)
        side = int(rng.choice([16, 32, 64, 96, 112]))
        # The originals make the whole of a strip, of which we compute the middle.
        if max(width, height) / min(width, height) * side * side < 1 << 22:
            pixels = Image.fromarray(noise(rng, width, height))
            assert_equal(saved(pixels, "BMP" if number % 2 else "JPEG"), name, side)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", [(1, 1), (3000, 2111), (2999, 7), (5, 1200), (512, 512)])
def test_extreme_sizes_have_the_pixels_of_the_original(name: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    side = 256 if max(size) < 50 * min(size) else 16
    assert_equal(saved(Image.fromarray(noise(rng, *size)), "BMP"), name, side)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_every_mode_has_the_pixels_of_the_original(name: str, mode: str) -> None:
    rng = np.random.default_rng(MODES.index(mode))
    for _ in range(4):
        content = in_mode(mode, rng, *rng.integers(20, 40, 2).tolist())
        opened = Image.open(io.BytesIO(content))
        assert opened.mode == mode.partition("+")[0] or mode == "1"
        assert_equal(content, name, 16)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "progressive"])
def test_turned_images_have_the_pixels_of_the_original(
    name: str, orientation: int, format: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.open(PHOTOS / "cat.jpg").crop((90, 60, 150, 100))
    options = {"progressive": True} if format == "progressive" else {}
    content = saved(image, "JPEG" if options else format, exif=exif, **options)
    assert_equal(content, name, 32)


@pytest.mark.parametrize("name", PRESETS)
def test_photos_have_the_pixels_of_the_original(name: str) -> None:
    for photo in sorted(PHOTOS.iterdir())[:8]:
        if photo.suffix in (".jpg", ".png", ".webp"):
            assert_equal(photo.read_bytes(), name, 64)


def test_a_truncated_image_has_the_pixels_that_unidisc_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = (PHOTOS / "cat.jpg").read_bytes()
    half = content[: len(content) // 2]
    preset = PRESETS["unidisc"]
    found = decode_image(half, decoding=preset.decoding, allow_truncated=preset.allow_truncated)
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(half)).convert("RGB")))


# The values that each network sees, from the description of each program.
VALUES: dict[str, Callable[[np.ndarray], Any]] = {
    "unidisc": lambda x: torch.from_numpy(x).float().div(255) * 2 - 1,
    "llamagen": lambda x: (torch.from_numpy(x).float().div(255) - 0.5) / 0.5,
    "liquid": lambda x: torch.from_numpy(x / 255.0 * 2 - 1).float(),
}


def values(name: str, image: Any, side: int) -> Any:
    if name == "chameleon":
        transformers = load_transformers()
        processor = transformers.ChameleonImageProcessorPil(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )
        return processor(image, return_tensors="pt")["pixel_values"]
    pixels = np.array(ORIGINALS[name](image, side))
    return VALUES[name](np.moveaxis(pixels, -1, 0)[None].copy())


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SHARDMILL_THREADS", "2")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def photo_folder(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    rng = np.random.default_rng(0)
    files = {f"{n}": in_mode(mode, rng, 60, 44) for n, mode in enumerate(MODES[:-3])}
    files["cat"] = (PHOTOS / "cat.jpg").read_bytes()
    exif = Image.Exif()
    exif[0x0112] = 6
    files["turned"] = saved(Image.open(PHOTOS / "cat.jpg"), "JPEG", exif=exif)
    rows = []
    for key, content in files.items():
        document = Document((Segment(kind="image", media="img"),))
        rows.append((Sample(key=key, document=document, media={"img": content}), {}))
    return write_sample_folder(tmp_path / "in", [rows[:5], rows[5:]]), files


def write_weights(tmp_path: Path, name: str) -> Path:
    """Write weights with so fine a codebook that a bit of the input decides."""
    path = tmp_path / "weights"
    if name in ("unidisc", "llamagen"):
        write_llamagen(path, replace(SMALL_LLAMAGEN, num_codes=20000))
    else:
        write_original(path, replace(SMALL, z_channels=2, embed_dim=2, num_codes=60000))
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_codes_are_those_of_the_original(tmp_path: Path, name: str) -> None:
    from shardmill.tokens.vq.network import PlainLayers, encode, nearest_codes
    from shardmill.tokens.vq.weights import load_weights

    folder, files = photo_folder(tmp_path)
    weights = write_weights(tmp_path, name)
    made = sm.codes(
        folder, tmp_path / "out", weights=weights, preset=name, resolution=32, device="cpu",
        workers=0, progress=False,
    )  # fmt: skip
    assert made.spec.preset == name
    assert made.counts.num_kept == len(files)
    loaded = load_weights(weights)
    book = loaded.tensors["quantize.embedding.weight"]
    torch.set_num_threads(1)
    for key, content in files.items():
        seen = values(name, Image.open(io.BytesIO(content)), 32)
        with torch.inference_mode():
            vectors = encode(PlainLayers(loaded.tensors), loaded.shape, seen).permute(0, 2, 3, 1)
            flat = vectors.reshape(-1, vectors.shape[-1])
            expected = nearest_codes(flat, book, normalised=loaded.shape.normalised)
        (image,) = made[made.find(key)]
        assert np.array_equal(image.codes.reshape(-1), expected.numpy()), key


def test_a_folder_of_one_preset_is_not_continued_with_another(tmp_path: Path) -> None:
    folder, _ = photo_folder(tmp_path)
    weights = write_weights(tmp_path, "llamagen")
    options: dict[str, Any] = {"weights": weights, "resolution": 32, "device": "cpu"}
    options |= {"workers": 0, "progress": False}
    sm.codes(folder, tmp_path / "out", preset="llamagen", part="1/2", **options)
    for other in (*(set(PRESETS) - {"llamagen"}), None):
        with pytest.raises(StaleError, match=r'geometry\.resample: "bicubic" ->'):
            sm.codes(folder, tmp_path / "out", preset=other, **options)
    assert sm.codes(folder, tmp_path / "out", preset="llamagen", **options).complete
    same = {"geometry": "square,resample=bicubic,rounding=nearest,halve=true,max_aspect=null"}
    same |= {"decoding": "alpha=drop,depth=clip,orientation=ignore"}
    assert sm.codes(folder, tmp_path / "out", **same, **options).spec.preset == "llamagen"


def test_a_preset_leaves_nothing_to_say_but_the_resolution(tmp_path: Path) -> None:
    for more in ({"geometry": "native"}, {"decoding": "alpha=drop"}):
        with pytest.raises(ConfigError, match="--preset liquid says how"):
            sm.codes(tmp_path, tmp_path / "out", weights=tmp_path, preset="liquid", **more)
    with pytest.raises(ConfigError, match="from a field"):
        sm.codes(tmp_path, tmp_path / "out", from_="vqcode_512", preset="liquid")


def test_the_names_of_presets_are_those_of_the_option() -> None:
    hint = get_type_hints(sm.codes)["preset"]
    assert {*get_args(get_args(hint)[0])} == {*PRESETS}
