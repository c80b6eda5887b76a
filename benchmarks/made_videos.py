"""Clips for the video benchmarks, made once by ffmpeg from the photos of the demo.

A minute of 720p at 30 frames a second: eight photos in a slow zoom with some grain, encoded by
libx264 as it comes, with a key frame at each cut and the others up to 250 frames away.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = ROOT / "demo" / "data" / "photos"
CACHE_DIR = ROOT / ".cache" / "videos"
NUM_PHOTOS = 8
FRAMES_EACH = 225


def minute_clip() -> Path:
    """Return a minute of 720p H.264, making it on first use."""
    path = CACHE_DIR / "minute.mp4"
    if not path.exists():
        inputs: list[str] = []
        filters = []
        for number, photo in enumerate(sorted(PHOTOS.glob("*.jpg"))[:NUM_PHOTOS]):
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
    path = CACHE_DIR / f"minutes-{minutes}.mp4"
    if not path.exists():
        loop = ["-stream_loop", str(minutes - 1), "-i", str(minute_clip())]
        _ffmpeg(path, *loop, "-c", "copy")
    return path


def _ffmpeg(path: Path, *arguments: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part.mp4")
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments, str(made)], check=True)
    made.rename(path)
