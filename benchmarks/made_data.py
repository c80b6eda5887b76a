"""The data of the benchmarks, made up and the same every time.

Samples, tars, token folders, videos, and a stage whose units cost what one asks for. Finished token
folders are written by `tests/support`, since tokenizing would take longer than what is measured.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from side_by_side import QUICK, sized

if TYPE_CHECKING:
    from shardmill.model.stage import Draft, Tally, Unit, Work

ROOT = Path(__file__).resolve().parents[1]
SUPPORT_DIR = ROOT / "tests" / "support"
PHOTOS_DIR = ROOT / "demo" / "data" / "photos"
VIDEOS_DIR = ROOT / ".cache" / "videos"

NUM_DISTINCT = 2000  # 120 MB, more than any cache
SENTENCE = "a photo of two small birds on the old bridge near green water with people in red"
WORDS = SENTENCE.split()
NUM_PHOTOS = 8
FRAMES_EACH = sized(225, 15)

MadeSample = tuple[str, bytes, bytes]


def make_samples(num: int, mean_bytes: int, seed: int = 0) -> Iterator[MadeSample]:
    """Yield (key, image, json); images are incompressible and shared after the first 2000."""
    rng = random.Random(seed)
    num_distinct = min(NUM_DISTINCT, num, max(1, 400_000_000 // mean_bytes))
    images = [
        rng.randbytes(rng.randint(mean_bytes * 2 // 3, mean_bytes * 4 // 3))
        for _ in range(num_distinct)
    ]
    for number in range(num):
        image = images[number % num_distinct]
        words = " ".join(rng.choices(WORDS, k=rng.randint(5, 40)))
        row = {"caption": words, "width": 512, "height": 384, "row": number}
        yield f"{number:08d}", image, json.dumps(row).encode()


def make_shards(num: int, mean_bytes: int, num_shards: int) -> list[list[MadeSample]]:
    """Return made samples in shards of the same length."""
    samples = make_samples(num, mean_bytes)
    return [[next(samples) for _ in range(num // num_shards)] for _ in range(num_shards)]


def write_ustar(path: Path, samples: Iterable[MadeSample]) -> None:
    """Write samples to a plain tar with the standard library."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, image, text in samples:
            for ext, content in (("jpg", image), ("json", text)):
                member = tarfile.TarInfo(f"{key}.{ext}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tars(folder: Path, num: int, mean_bytes: int, num_shards: int) -> None:
    """Write tars that all readers share, and our index of them in `folder/index`."""
    import shardmill as sm

    for number, shard in enumerate(make_shards(num, mean_bytes, num_shards)):
        write_ustar(folder / f"{number:05d}.tar", shard)
    sm.index(f"{folder}/*.tar", folder / "index", workers=0)


def write_tokens(folder: Path, shards: Iterable[Iterable[Mapping[str, Any]]], **space: Any) -> Path:
    """Write a finished folder of token shards; a row has `key`, `ids`, and maybe `loss`, `media`.

    `space` is the fields of the token space, such as `text_size`.
    """
    sys.path.insert(0, str(SUPPORT_DIR))
    from token_folder import write_token_folder

    from shardmill.model.space import TokenSpace
    from shardmill.model.tokenrow import MediaSpan, TokenRow

    def made(row: Mapping[str, Any]) -> TokenRow:
        media = tuple(MediaSpan(**span) for span in row.get("media", ()))
        return TokenRow(**{**row, "media": media})

    rows = [[made(row) for row in shard] for shard in shards]
    return write_token_folder(folder, rows, TokenSpace(**space))


def minute_clip() -> Path:
    """Return a minute (in a quick run 4 s) of 720p H.264, 30 frames/s, making it on first use.

    Eight photos of the demo in a slow zoom with some grain, encoded by libx264 as it comes: a key
    frame at each cut, and the others up to 250 frames away.
    """
    path = VIDEOS_DIR / ("quick.mp4" if QUICK else "minute.mp4")
    if not path.exists():
        inputs: list[str] = []
        filters = []
        for number, photo in enumerate(sorted(PHOTOS_DIR.glob("*.jpg"))[:NUM_PHOTOS]):
            inputs += ["-i", str(photo)]
            filters.append(
                f"[{number}]scale=2560:1440:force_original_aspect_ratio=increase,"
                f"crop=2560:1440,zoompan=z=1+0.001*on:d={FRAMES_EACH}:s=1280x720:fps=30,"
                f"noise=alls=5:allf=t,setsar=1,format=yuv420p[v{number}]"
            )
        parts = "".join(f"[v{number}]" for number in range(len(filters)))
        graph = ";".join([*filters, f"{parts}concat=n={len(filters)}:v=1"])
        _ffmpeg(path, *inputs, "-filter_complex", graph, "-c:v", "libx264")
    return path


def long_clip(minutes: int) -> Path:
    """Return the minute again and again, without a new encoding."""
    path = minute_clip().with_name(f"{minute_clip().stem}-{minutes}.mp4")
    if not path.exists():
        loop = ["-stream_loop", str(minutes - 1), "-i", str(minute_clip())]
        _ffmpeg(path, *loop, "-c", "copy")
    return path


def _ffmpeg(path: Path, *arguments: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part.mp4")
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments, str(made)], check=True)
    made.rename(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUnits:
    """A stage of units that compute `num_rounds` and write nothing."""

    num_units: int
    num_rounds: int = 0
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return nothing: there is no input folder."""
        return {}

    def units(self) -> Iterator[Unit]:
        """Yield numbered units."""
        from shardmill.model.stage import Unit

        return (Unit(name=f"{i:06d}", input={"i": i}) for i in range(self.num_units))

    def inputs(self) -> Mapping[str, Any]:
        """Return nothing: there is no input."""
        return {}

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work."""
        yield self._work

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        spin(self.num_rounds)


def spin(num_rounds: int) -> int:
    """Compute in one thread."""
    total = 0
    for number in range(num_rounds):
        total = (total * 31 + number) % 1_000_003
    return total
