"""The Chameleon encoder on a GPU, and all the way from JPEG shards: python benchmarks/codes_gpu.py

Goals on one H200 at 512 pixels: 600 images/s in fp16 and 360 in tf32 inside the encoder, codes
equal to fp32 of 97 % and 99.9 %; from JPEG tars on disk 90 % of the encoder's speed. The fused
encoder must beat plain torch as one would tune it (batched fp16, channels last, flash attention,
cuDNN autotuning), eager and with `torch.compile`, in the same run.

The weights are random in the real layout and size; the codebook is made by k-means over what the
encoder makes of photos, so that codes are used as by a trained model. `--quick` runs a small
network on whatever there is. The encoder alone is the internal one; from JPEG shards it is
the command `shardmill codes`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from decode_images import photos
from made_data import SUPPORT_DIR
from side_by_side import QUICK, RESULTS_DIR

sys.path.insert(0, str(SUPPORT_DIR))

from vq_checkpoints import random_tensors

from shardmill.media.geometry import Square
from shardmill.media.image import decode_image, resize_crop
from shardmill.tokens.vq.encode import BatchEncoder
from shardmill.tokens.vq.network import PlainLayers, PlainTokenizer, encode, nearest_codes
from shardmill.tokens.vq.tokenizer import ChameleonVq
from shardmill.tokens.vq.weights import VqShape, VqWeights, load_weights

GFLOP_AT_512 = 554
LIMIT_TFLOPS = 790  # a large product of bf16 matrices on an H200
SECONDS = 3.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = VqShape(base_channels=32, multipliers=(1, 1, 2), num_codes=256) if QUICK else VqShape()
SIDE = 64 if QUICK else 512
NUM_PHOTOS = 8 if QUICK else 96


def with_trained_codebook(weights: VqWeights, pixels: Any) -> VqWeights:
    """Return the weights with a codebook of k-means over the encoder's vectors of photos."""
    live = PlainTokenizer(weights, DEVICE)
    vectors = torch.cat([live.vectors(batch.to(DEVICE)) for batch in pixels.split(8)]).flatten(0, 2)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(vectors), generator=generator)[: weights.shape.num_codes]
    book = vectors[chosen.to(DEVICE)].clone()
    for _ in range(12):
        nearest = nearest_codes(vectors, book)
        counts = torch.bincount(nearest, minlength=len(book))
        sums = torch.zeros_like(book).index_add_(0, nearest, vectors)
        used = counts > 0
        book[used] = sums[used] / counts[used, None]
    return replace(weights, tensors={**weights.tensors, "quantize.embedding.weight": book.cpu()})


def save_checkpoint(weights: VqWeights, folder: Path) -> ChameleonVq:
    """Write the weights in the original layout, and return the spec that reads them."""
    folder.mkdir()
    torch.save({"state_dict": dict(weights.tensors)}, folder / "vqgan.ckpt")
    return ChameleonVq(weights=str(folder)).pinned()


def photo_pixels(side: int, count: int) -> Any:
    """Return the middle squares of photos [count, side, side, 3]."""
    geometry = Square(resolution=side)
    squares = []
    for content in photos(side * 4 // 3, side, count):
        pixels = decode_image(content)
        squares.append(resize_crop(pixels, geometry.fit(pixels.shape[1], pixels.shape[0])))
    return torch.from_numpy(np.stack(squares))


def rate(step: Callable[[], int], seconds: float) -> float:
    """Return images a second over a time in which the GPU has warmed up and slowed down."""
    for _ in range(3):  # the third use of a shape records its kernels
        step()
    synchronize()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += step()
        synchronize()
    return done / (time.perf_counter() - began)


def encoder_table(spec: ChameleonVq, pixels: Any) -> list[str]:
    """Return the table of precisions: speed with images on the GPU, and codes equal to fp32."""
    exact = encode_all(spec, "fp32", pixels)
    rows = [
        "| precision | batch | images/s, first 0.1 s | sustained | TFLOP/s | of the limit "
        "| codes equal to fp32 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for precision in ("fp32", "tf32", "fp16") if DEVICE == "cuda" else ("fp32",):
        found = exact if precision == "fp32" else encode_all(spec, precision, pixels)
        share = float((found == exact).float().mean())
        for batch in (8,) if precision == "fp32" else (32, 64):
            burst, sustained = encoder_rates(spec, precision, pixels, batch)
            tflops = sustained * GFLOP_AT_512 / 1000 * (SIDE / 512) ** 2
            rows.append(
                f"| {precision} | {batch} | {burst:,.0f} | {sustained:,.0f} | {tflops:,.0f} "
                f"| {100 * tflops / LIMIT_TFLOPS:.0f} % | {100 * share:.3f} % |"
            )
            print(rows[-1], flush=True)
    used = int(exact.unique().numel())
    return [*rows, "", f"{used:,} of {SHAPE.num_codes:,} codes are used by {len(pixels)} photos."]


def encoder_rates(
    spec: ChameleonVq, precision: str, pixels: Any, batch: int
) -> tuple[float, float]:
    """Return images/s of the encoder and quantizer alone, replayed: at first, and sustained."""
    encoder = BatchEncoder(spec.load(precision, DEVICE), DEVICE)
    repeats = -(-batch // len(pixels))
    chosen = pixels.repeat(repeats, 1, 1, 1)[:batch].to(DEVICE)

    def step() -> int:
        encoder.launch(chosen)
        return batch

    return rate(step, 0.1), rate(step, 0.2 if QUICK else SECONDS)


def encode_all(spec: ChameleonVq, precision: str, pixels: Any) -> Any:
    """Return the codes of all images."""
    encoder = BatchEncoder(spec.load(precision, DEVICE), DEVICE)
    return torch.cat([torch.from_numpy(encoder.launch(b).wait()) for b in pixels.split(16)])


class TunedLayers(PlainLayers):
    """Plain torch with its fast attention and SiLU; activations are fp16 in channels last."""

    def norm_silu_conv(self, norm: str, conv: str, x: Any, add: Any | None = None) -> Any:
        x = self.conv(conv, F.silu(self._norm(norm, x)))
        return x if add is None else add + x

    def attention(self, name: str, x: Any) -> Any:
        normed = self._norm(f"{name}.norm", x)
        query, key, value = (
            self.conv(f"{name}.{part}", normed).flatten(2).transpose(1, 2).unsqueeze(1)
            for part in ("q", "k", "v")
        )
        seen = F.scaled_dot_product_attention(query, key, value)
        seen = seen.squeeze(1).transpose(1, 2).reshape(x.shape)
        return x + self.conv(f"{name}.proj_out", seen)


def tuned_torch(weights: VqWeights, *, compiled: bool) -> Callable[[Any], Any]:
    """Return bytes to codes in plain torch, fp16 and channels last, eager or compiled."""
    half = {name: tensor.to(DEVICE, torch.float16) for name, tensor in weights.tensors.items()}
    for name, tensor in half.items():
        if tensor.dim() == 4:
            half[name] = tensor.contiguous(memory_format=torch.channels_last)
    codebook = weights.tensors["quantize.embedding.weight"].to(DEVICE)
    layers = TunedLayers(half)

    def codes(pixels: Any) -> Any:
        # Bytes [batch, height, width, 3] seen as channels first are channels last already.
        scaled = pixels.permute(0, 3, 1, 2).half() / 127.5 - 1
        vectors = encode(layers, weights.shape, scaled).permute(0, 2, 3, 1)
        found = nearest_codes(vectors.reshape(-1, vectors.shape[-1]), codebook)
        return found.view(vectors.shape[:3]).int()

    return torch.compile(codes, dynamic=False) if compiled else codes


def opponent_table(spec: ChameleonVq, weights: VqWeights, pixels: Any) -> list[str]:
    """Return the speed in fp16 of the fused encoder and of plain torch, tuned and compiled."""
    exact = encode_all(spec, "fp32", pixels).to(DEVICE)
    rows = [
        "| fp16 | batch | images/s | fused is faster by | codes equal to fp32 |",
        "|---|---:|---:|---:|---:|",
    ]
    torch.backends.cudnn.benchmark = True
    fused = 0.0
    if DEVICE == "cuda":
        fused, batch = max((encoder_rates(spec, "fp16", pixels, b)[1], b) for b in (32, 64))
        share = float((encode_all(spec, "fp16", pixels).to(DEVICE) == exact).float().mean())
        rows.append(f"| fused | {batch} | {fused:,.0f} | | {100 * share:.3f} % |")
    for name, compiled in (("eager, channels last", False), ("torch.compile", True)):
        step = tuned_torch(weights, compiled=compiled)
        found = []
        for batch in (4,) if QUICK else (16, 32, 64):
            chosen = pixels.repeat(-(-batch // len(pixels)), 1, 1, 1)[:batch].to(DEVICE)
            found.append((opponent_rate(step, chosen), batch))
        speed, batch = max(found)
        with torch.inference_mode():
            parts = [step(part.to(DEVICE)).clone() for part in pixels.split(batch)]
        share = float((torch.cat(parts) == exact).float().mean())
        ratio = f"{fused / speed:.2f} x" if fused else "not run"
        rows.append(f"| {name} | {batch} | {speed:,.0f} | {ratio} | {100 * share:.3f} % |")
        print(rows[-1], flush=True)
    torch.backends.cudnn.benchmark = False
    return rows


def opponent_rate(codes: Callable[[Any], Any], pixels: Any) -> float:
    """Return images/s, sustained, with images on the GPU."""

    def step() -> int:
        with torch.inference_mode():
            codes(pixels)
        return len(pixels)

    return rate(step, 0.2 if QUICK else SECONDS)


def size_table(spec: ChameleonVq) -> list[str]:
    """Return the speed in fp16 at other sizes."""
    rows = ["| pixels | batch | images/s | TFLOP/s |", "|---|---:|---:|---:|"]
    for side, batch in ((256, 128), (1024, 8)):
        _, speed = encoder_rates(spec, "fp16", photo_pixels(side, 8), batch)
        tflops = speed * GFLOP_AT_512 / 1000 * (side / 512) ** 2
        rows.append(f"| {side} x {side} | {batch} | {speed:,.0f} | {tflops:,.0f} |")
        print(rows[-1], flush=True)
    return rows


def end_to_end(spec: ChameleonVq, folder: Path) -> list[str]:
    """Return what `shardmill codes` reaches from tars on disk, by the times of its units."""
    width, height, side = (96, 72, 64) if QUICK else (1024, 768, 512)
    precision = "fp16" if DEVICE == "cuda" else "fp32"
    shards = make_shards(folder, width, height, num_samples=60 if QUICK else 8000)
    out = folder / "codes"
    run_verb(
        "codes", str(shards), str(out), "--tokenizer", f"chameleon,weights={spec.weights}",
        "--resolution", str(side), "--precision", precision,
    )  # fmt: skip
    events = [json.loads(line) for path in out.glob("events/*.jsonl") for line in path.open()]
    units = [event for event in events if event["kind"] == "done"][1:]  # the first one compiles
    seconds, num_samples = sum(u["seconds"] for u in units), sum(u["num_in"] for u in units)
    manifest = json.loads((out / "manifest.json").read_text())
    stats = manifest["stats"]
    lines = [
        f"{num_samples / seconds:,.0f} images/s from JPEG of {width} x {height} in tars to code "
        f"shards of {side} x {side} in {precision}, {len(units)} units of "
        f"{num_samples // len(units):,}, {os.cpu_count()} CPUs."
    ]
    if "codes compared with fp32" in stats:
        share = stats["codes equal to fp32"] / stats["codes compared with fp32"]
        lines.append(f"The run's own report: {100 * share:.3f} % of the codes equal fp32.")
    print(*lines, sep="\n", flush=True)
    return lines


def make_shards(folder: Path, width: int, height: int, num_samples: int) -> Path:
    """Return a folder of sample shards with JPEG photos; there are 64 different ones."""
    images = folder / "images"
    images.mkdir()
    different = photos(width, height, 8 if QUICK else 64)
    for number in range(num_samples):
        content = different[number % len(different)]
        (images / f"{number:06d}.jpg").write_bytes(content)
        (images / f"{number:06d}.txt").write_text(f"image {number}")
    per_shard = "20" if QUICK else "1000"
    run_verb("ingest", str(images), str(folder / "shards"), "--per-shard", per_shard)
    return folder / "shards"


def run_verb(*words: str) -> None:
    """Run a command of shardmill."""
    subprocess.run([sys.executable, "-m", "shardmill", *words], check=True)


def decode_rate(num_threads: int) -> str:
    """Say how many images/s the CPUs alone decode and crop."""
    from concurrent.futures import ThreadPoolExecutor

    contents, geometry = photos(1024, 768, 16) * 16, Square()

    def decode(content: bytes) -> None:
        pixels = decode_image(content)
        resize_crop(pixels, geometry.fit(pixels.shape[1], pixels.shape[0]))

    torch.set_num_threads(1)
    with ThreadPoolExecutor(num_threads, initializer=lambda: torch.set_num_threads(1)) as pool:
        list(pool.map(decode, contents[:num_threads]))
        began = time.perf_counter()
        list(pool.map(decode, contents))
        speed = len(contents) / (time.perf_counter() - began)
    how = "torch" if hasattr(torch.ops.aten, "_upsample_lanczos2d_aa") else "Pillow"
    return f"Decoding and cropping alone, {num_threads} threads, resized by {how}: {speed:,.0f}/s."


def synchronize() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run everything, and keep the tables."""
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    about = f"{name}, torch {torch.__version__}, {os.cpu_count()} CPUs."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pixels = photo_pixels(SIDE, NUM_PHOTOS)
        weights = with_trained_codebook(
            VqWeights(SHAPE, random_tensors(SHAPE, parts=["encoder"]), has_decoder=False), pixels
        )
        spec = save_checkpoint(weights, folder / "weights")
        assert load_weights(folder / "weights").shape == SHAPE
        sections = ["## Encoder and quantizer", *encoder_table(spec, pixels), ""]
        sections += ["## Against plain torch", *opponent_table(spec, weights, pixels), ""]
        if DEVICE == "cuda":
            sections += ["## Other sizes, fp16", *size_table(spec), ""]
        sections += ["## From JPEG shards to code shards", *end_to_end(spec, folder), ""]
        sections += [decode_rate(os.cpu_count() or 1)]
    text = "\n".join(["# VQ codes", "", about, "", *sections, ""])
    print(text)
    if not QUICK:
        (RESULTS_DIR / "codes_gpu.md").write_text(text)


if __name__ == "__main__":
    main()
