"""Raw files of video data sets as their makers publish them, with clips that carry numbers.

Frame i of every clip shows i; clips differ in length. Images show numbers from 100 on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from make_media import encode
from numbered_video import numbered_clip, numbered_pixels
from tars import tar_bytes

SIDE = 96
RATE = 10
SHORT, LONG = 40, 60  # frames
CAPTIONS = ("a cat runs over a wall", "a man opens a wooden box")


@dataclass(frozen=True)
class World:
    """Where the raw files lie; `media` is where relative paths in them begin."""

    folder: Path

    @property
    def media(self) -> Path:
        return self.folder / "media"

    def clip(self, name: str, num_frames: int) -> str:
        """Write a clip below the media folder and return its name."""
        return self.put(f"{name}.mp4", clip_bytes(num_frames))

    def image(self, number: int) -> str:
        """Write an image that shows a number and return its name."""
        return self.put(f"p{number}.png", encode("PNG", numbered_pixels(number, SIDE, SIDE)))

    def put(self, name: str, content: bytes) -> str:
        path = self.media / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    def rows(self, name: str, rows: Any) -> Path:
        """Write rows as an array, or one a line if the name says so."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = name.endswith(".jsonl")
        path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
        return path


@lru_cache
def clip_bytes(num_frames: int) -> bytes:
    """Return a square clip of 10 frames a second whose key frames are 6 apart."""
    return numbered_clip(num_frames, rate=RATE, size=(SIDE, SIDE), group=6)


def turns(*texts: str) -> list[dict[str, str]]:
    """Return a conversation as LLaVA writes it."""
    return [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]


def webvid(world: World) -> Path:
    paths = [world.clip("000001_000050/1", SHORT), world.clip("000001_000050/2", LONG)]
    columns = {"image": paths, "value": CAPTIONS}
    return world.rows(
        "webvid.json", {name: {str(n): v for n, v in enumerate(c)} for name, c in columns.items()}
    )


def internvid(world: World) -> Path:
    rows = []
    for number, (frames, end) in enumerate(((SHORT, "00:00:04.000"), (LONG, "00:00:06.000"))):
        world.clip(f"y{number}_00:00:00.000_{end}", frames)
        row = {"YoutubeID": f"y{number}", "Start_timestamp": "00:00:00.000", "End_timestamp": end}
        rows.append({**row, "Caption": CAPTIONS[number], "UMT_Score": 0.4})
    return world.rows("InternVid-10M-FLT-INFO.jsonl", rows)


def internvid_whole(world: World) -> Path:
    world.clip("whole", LONG)
    spans = (("00:00:00.000", "00:00:03.000"), ("00:00:03.000", "00:00:06.000"))
    return world.rows(
        "whole.jsonl",
        [
            {"YoutubeID": "whole", "Start_timestamp": s, "End_timestamp": e, "Caption": c}
            for (s, e), c in zip(spans, CAPTIONS)
        ],
    )


def hd3m(world: World) -> Path:
    paths = [world.clip("hd/1", SHORT), world.clip("hd/2", LONG)]
    rows = [{"video": path, "caption": text} for path, text in zip(paths, CAPTIONS)]
    return world.rows("hd-3m3.json", rows)


def ego4d(world: World) -> Path:
    paths = [world.clip("ego/1", SHORT), world.clip("ego/2", LONG)]
    rows = [{"video_path": str(world.media / p), "caption": t} for p, t in zip(paths, CAPTIONS)]
    return world.rows("ego4d.json", rows)


def how2link(world: World) -> Path:
    world.clip("train/v0/clip_0", SHORT)
    world.clip("train/v0/clip_1", LONG)
    clips = [
        {"clip_path": f"/mnt/raw/train/v0/clip_{n}", "caption": text, "clip": [4 * n, 4 * n + 4]}
        for n, text in enumerate(CAPTIONS)
    ]
    return world.rows("How2link.json", [{"video_id": "v0", "clips": clips}])


def llava(world: World) -> Path:
    rows = [
        {
            "id": f"{n}",
            "image": world.image(100 + n),
            "conversations": turns("Describe it.\n<image>", text),
        }
        for n, text in enumerate(CAPTIONS)
    ]
    return world.rows("blip_laion_cc_sbu_558k.json", rows)


def videochat2_frames(world: World) -> Path:
    frames = [world.image(100 + n) for n in range(16)]
    talk = turns("<image>" * 16 + "What is shown?", CAPTIONS[0], "And then?", CAPTIONS[1])
    return world.rows("videochat2_full.json", [{"images": frames, "conversations": talk}])


def videochat2_videos(world: World) -> Path:
    rows = [
        {
            "video": world.clip(f"chat/{n}", frames),
            "QA": [{"i": "Watch.", "q": "What happens?", "a": CAPTIONS[n]}],
        }
        for n, frames in enumerate((SHORT, LONG))
    ]
    return world.rows("sft.json", rows)


def videochat2_images(world: World) -> Path:
    rows = [
        {"image": world.image(100 + n), "QA": [{"i": "", "q": "What is it?", "a": text}]}
        for n, text in enumerate(CAPTIONS)
    ]
    return world.rows("processed.json", rows)


def unicontrol(world: World) -> Path:
    rows = [
        {
            "source": world.image(100 + 2 * n),
            "target": world.image(101 + 2 * n),
            "prompt": text,
        }
        for n, text in enumerate(CAPTIONS)
    ]
    return world.rows("aesthetics_plus_all_group_canny_all.jsonl", rows)


def merlin(world: World) -> Path:
    names = [world.image(100 + n) for n in range(11)]
    names.insert(1, f"Black background: {SIDE}, {SIDE}")
    text = (
        f"{'<image>' * 2}#0.0-4.5# {CAPTIONS[0]} {'<image>' * 10}#4.5-9.0# {CAPTIONS[1]} "
        "Summary: work with wood"
    )
    rows = [{"image_info": [{"image_name": name} for name in names], "text_list": text}]
    return world.rows("merlin.json", rows)


def own_rows(world: World) -> Path:
    paths = [world.clip("own/1", SHORT), world.clip("own/2", LONG)]
    return world.rows(
        "own.jsonl",
        [
            {"video_path": paths[0], "value": CAPTIONS[0]},
            {"video_path": paths, "value": [{"q": "What do they show?", "a": CAPTIONS[1]}]},
        ],
    )


def packed_tar(world: World, name: str, samples: list[tuple[dict[str, Any], list[bytes]]]) -> Path:
    """Write a tar as `pack.py` does: K.json, then K-0.jpg and so on, or K.mp4 for a video."""
    members = []
    for number, (fields, media) in enumerate(samples):
        members.append((f"{number:09d}.json", json.dumps(fields).encode()))
        for index, content in enumerate(media):
            is_video = content[4:8] == b"ftyp"
            ending = ".mp4" if is_video else f"-{index}.jpg"
            members.append((f"{number:09d}{ending}", content))
    path = world.folder / f"shard-0-0-2-{name}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def jpegs(first: int, count: int) -> list[bytes]:
    """Return images that show numbers."""
    shown = [numbered_pixels(number, SIDE, SIDE) for number in range(first, first + count)]
    return [encode("JPEG", pixels, quality=95) for pixels in shown]


def names(sample: int, count: int) -> list[str]:
    """Return the names that `pack.py` gives to frames."""
    return [f"{sample:09d}-{index}" for index in range(count)]


def packed_un(world: World) -> Path:
    made = [
        (
            {"prompt": "<image>" * 12, "txt": text, "image_name_list": names(n, 12)},
            jpegs(100 + 20 * n, 12),
        )
        for n, text in enumerate(CAPTIONS)
    ]
    return packed_tar(world, "un", made)


def packed_kf(world: World) -> Path:
    prompt = "".join(f"<{'IP'[n % 2]}image>#{n * 1000 // 11}" for n in range(12))
    fields = {"prompt": prompt, "txt": CAPTIONS[0], "image_name_list": names(0, 12)}
    return packed_tar(world, "kf", [(fields, jpegs(100, 12))])


def packed_pairs(world: World) -> Path:
    made = [
        ({"conversations": turns("<video>", text), "videos": [f"{n:09d}"]}, [clip_bytes(frames)])
        for n, (text, frames) in enumerate(zip(CAPTIONS, (SHORT, LONG)))
    ]
    return packed_tar(world, "pairs", made)


def packed_control(world: World) -> Path:
    made = [
        (
            {"source": names(n, 2)[0], "target": names(n, 2)[1], "prompt": text},
            jpegs(100 + 2 * n, 2),
        )
        for n, text in enumerate(CAPTIONS)
    ]
    return packed_tar(world, "control", made)
