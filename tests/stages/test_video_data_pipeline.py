"""Video-Data-Pipeline, held against its behaviour as it is described, written here once more."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_image
from sample_folder import write_sample_folder
from sentencepiece import SentencePieceProcessor
from video_tables import steady_table

import shardmill as sm
from shardmill.media.samplers import Keyframes, VideoTable
from shardmill.model.codec import build, parse_plugin
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.plugins import FRAME_SAMPLERS
from shardmill.stages.frames import PRESETS
from shardmill.tokens.text.sentencepiece import BUNDLED


def uniform_frames(num_frames: int, fps: float, count: int = 16) -> list[int]:
    """Return the middles of segments between the first frame and the last, as numbers."""
    first, last = max(0, round(-1e5 * fps)), min(round(1e5 * fps), num_frames - 1)
    size = (last - first) / count
    return [int(first + size / 2 + np.round(size * i)) for i in range(count)]


def sample_evenly(frames: list[int], count: int) -> list[int]:
    if len(frames) <= count:
        return frames
    step = int((len(frames) - 1) / (count - 1))
    return [frames[i * step] for i in range(count)]


def key_frames(types: str, i_frames: int = 8, total: int = 24) -> list[int]:
    """Return the frames of a video whose frames have these types: I and the last, then others."""
    last = len(types) - 1
    i_set = sorted({n for n, kind in enumerate(types) if kind == "I"} | {last})
    others = [n for n, kind in enumerate(types) if kind != "I" and n != last]
    chosen = sample_evenly(i_set, i_frames)
    return sorted(chosen + sample_evenly(others, total - len(chosen)))


def marks(frames: list[int], num_frames: int, scale: int = 1000) -> list[int]:
    return [int(n / (num_frames - 1) * scale) for n in frames]


def of_preset(name: str) -> Any:
    sampler = PRESETS[name]["sampler"]
    return build(FRAME_SAMPLERS, parse_plugin(sampler), where="sampler", trusted=True)


def chosen(sampler: Any, video: VideoTable) -> list[int]:
    return video.numbers_at(sampler.times(video)).tolist()


@given(st.integers(1, 3000), st.sampled_from([1, 10, 15, 24, 25, 30, 60]))
def test_uniform_frames_have_the_numbers_of_the_original(num: int, fps: int) -> None:
    video = steady_table(num, fps=fps)
    assert chosen(of_preset("vdp-un"), video) == uniform_frames(num, fps)


@given(st.integers(1, 400), st.integers(1, 40))
def test_uniform_frames_of_any_count(num: int, count: int) -> None:
    sampler = build(
        FRAME_SAMPLERS,
        {"kind": "uniform", "count": count, "by": "number", "repeat": True},
        where="sampler",
        trusted=True,
    )
    assert chosen(sampler, steady_table(num)) == uniform_frames(num, 10, count)


@given(st.integers(2, 600), st.sets(st.integers(1, 599)), st.integers(2, 12), st.integers(13, 40))
def test_key_frames_have_the_numbers_and_marks_of_the_original(
    num: int, keys: set[int], i_frames: int, total: int
) -> None:
    video = steady_table(num, keys={0, *keys})
    types = "".join("I" if n in keys or n == 0 else "PBB"[n % 3] for n in range(num))
    sampler = Keyframes(i_frames=i_frames, p_frames=total - i_frames, spacing="step")
    found = chosen(sampler, video)
    assert found == key_frames(types, i_frames, total)
    assert video.positions(1000, "number")[found].tolist() == marks(found, num)


# Scenes that change fast make I frames from which nothing can be decoded alone.
CUTS = (("bf", "2"), ("x264-params", "keyint=40:min-keyint=40:scenecut=200"))


def types_of(content: bytes) -> str:
    import io

    import av

    names = {int(kind): kind.name for kind in av.video.frame.PictureType}
    with av.open(io.BytesIO(content)) as container:
        return "".join(names[int(frame.pict_type)] for frame in container.decode(video=0))


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder of clips of 7, 60 and 130 frames that show their numbers."""
    samples = []
    for number, num_frames in enumerate((7, 60, 130)):
        segments = (
            Segment(kind="video", media="mp4"),
            Segment(kind="text", text=f"a clip of {num_frames} frames"),
        )
        content = numbered_clip(num_frames, group=40, options=CUTS)
        sample = Sample(key=f"{number}", document=Document(segments), media={"mp4": content})
        samples.append((sample, {"mp4": MediaSize(width=128, height=96, num_frames=num_frames)}))
    return write_sample_folder(tmp_path / "clips", [samples])


def test_frames_and_marks_of_the_presets_are_those_of_the_original(
    clips: Path, tmp_path: Path
) -> None:
    un = sm.frames(clips, tmp_path / "un", preset="vdp-un", workers=0)
    kf = sm.frames(clips, tmp_path / "kf", preset="vdp-kf", workers=0)
    for number, num_frames in enumerate((7, 60, 130)):
        types = types_of(numbered_clip(num_frames, group=40, options=CUTS))
        shown = [read_image(image) for image in un[number].media.values()]
        assert shown == uniform_frames(num_frames, 25)
        expected = key_frames(types)
        assert [read_image(image) for image in kf[number].media.values()] == expected
        assert len(expected) == min(24, num_frames)
        texts = [s.text for s in kf[number].document.segments if s.kind == "text"][:-1]
        assert texts == [f"#{at}" for at in marks(expected, num_frames)]
    # Not all of the I frames of this clip are key frames of its container.
    assert types.count("I") > 4


def test_what_is_said_comes_before_the_preset(clips: Path, tmp_path: Path) -> None:
    made = sm.frames(
        clips, tmp_path / "un", preset="vdp-kf", sampler="uniform,count=3", mark="", workers=0
    )
    segments = made[1].document.segments
    assert [segment.kind for segment in segments] == ["image"] * 3 + ["text"]


def test_a_clip_that_is_too_short_says_how_to_repeat_frames(clips: Path, tmp_path: Path) -> None:
    made = sm.frames(clips, tmp_path / "un", sampler="uniform", workers=0, max_skip_rate=0.5)
    assert len(made) == 2
    assert "repeat=true" in next((tmp_path / "un" / "rejects").iterdir()).read_text()
    made = sm.frames(clips, tmp_path / "all", sampler="uniform,repeat=true", workers=0)
    assert [read_image(image) for image in made[0].media.values()][::5] == [0, 2, 4, 6]


def read_grouped(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a tar by the rule of the original's reader.

    What follows `K.json` as `K-3.jpg` belongs to K under the name 3.jpg; what has the name K and
    another extension does too.
    """
    samples: list[dict[str, Any]] = []
    with tarfile.open(path) as tar:
        for member in tar:
            name, _, ext = member.name.partition(".")
            file = tar.extractfile(member)
            assert file is not None
            content = file.read()
            if ext == "json":
                samples.append({"key": name, "json": json.loads(content)})
            elif name == samples[-1]["key"]:
                samples[-1][ext] = content
            else:
                assert name.startswith(f"{samples[-1]['key']}-")
                samples[-1][f"{name.rpartition('-')[2]}.{ext}"] = content
    return samples


BLOCK = "<im_start>" + 256 * "<im_patch>" + "<im_end>"
PIECES = re.compile("(<im_start>|<im_patch>|<im_end>|</s>)")


class TheirTokens:
    """Text to ids: control tokens by their ids, what stands between them by sentencepiece."""

    def __init__(self) -> None:
        model = next(BUNDLED.glob("*.model"))
        self.model = SentencePieceProcessor(model_file=str(model))
        size = self.model.vocab_size()
        self.ids = {"<im_patch>": size, "<im_start>": size + 1, "<im_end>": size + 2, "</s>": 2}

    def ids_of(self, text: str) -> list[int]:
        found: list[int] = []
        for piece in filter(None, PIECES.split(text)):
            found += [self.ids[piece]] if piece in self.ids else self.model.encode(piece)
        return found

    def document(self, prompt: str, text: str) -> dict[str, list[Any]]:
        asked = re.sub("<image>|<Iimage>|<Pimage>", BLOCK, prompt)
        question, answer = self.ids_of(asked), self.ids_of(f"{text}</s>")
        mask = [0] * (1 + len(question)) + [1] * len(answer)
        said = f"<s>{asked}\n{text}</s>"
        return {"input_ids": [1, *question, *answer], "loss_mask": mask, "text": [said]}


def merged(documents: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    pack = {name: list(values) for name, values in documents[0].items()}
    for document in documents[1:]:
        pack["input_ids"] += document["input_ids"][1:]
        pack["loss_mask"] += document["loss_mask"][1:]
        pack["text"] += document["text"]
    return pack


def concatenated(samples: list[dict[str, Any]]) -> list[dict[str, list[Any]]]:
    """Return the packs of 8k; the last one, which the original loses, is there."""
    tokens, packs, waiting = TheirTokens(), [], []
    length = 0
    for sample in samples:
        fields = sample["json"]
        document = tokens.document(fields["prompt"], fields["txt"])
        assert sum(fields["prompt"].count(t) for t in ("<image>", "<Iimage>", "<Pimage>")) == len(
            fields["image_name_list"]
        )
        for name in fields["image_name_list"]:
            assert read_image(sample[f"{name.split('-')[-1]}.jpg"]) >= 0
        size = len(document["input_ids"])
        if length + size > 8000 and waiting:
            packs.append(merged(waiting))
            waiting, length = [], 0
        if size < 8000:
            waiting.append(document)
            length += size
    return [*packs, merged(waiting)]


def check_pair(sample: dict[str, Any], ids: dict[str, int]) -> None:
    """Assert what the original asserts of each pack, and dump what it dumps."""
    fields = sample["json"]
    tokens = fields["input_ids"]
    assert len(tokens) == len(fields["loss_mask"]) < 8000
    assert tokens.count(ids["<im_start>"]) == tokens.count(ids["<im_end>"])
    assert tokens.count(ids["<im_patch>"]) == 256 * len(fields["image"])
    assert "\n".join(fields["text"]).startswith("<s>")
    for name in fields["image"]:
        assert read_image(sample[f"{name}.jpg"]) >= 0


CAPTIONS = (
    "a cat runs",
    " two spaces before,\nand a second line",
    "雨の日の猫 😀 über",
    "x" * 3000,
)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Thirty clips in three shards, with captions of all sorts."""
    shards = []
    for shard in range(3):
        samples = []
        for number in range(10):
            text = CAPTIONS[number % 4] if shard < 2 else f"clip {number} " * (1 + 40 * number)
            segments = (Segment(kind="video", media="mp4"), Segment(kind="text", text=text))
            content = numbered_clip(20 + number, group=8)
            sample = Sample(
                key=f"{shard}-{number}",
                document=Document(segments),
                media={"mp4": content},
                extra={"clip": number},
            )
            samples.append((sample, {"mp4": MediaSize(width=128, height=96)}))
        shards.append(samples)
    return write_sample_folder(tmp_path / "many", shards)


SPACE = {"added": ["im_patch", "im_start", "im_end"]}


@pytest.mark.parametrize("preset", ["vdp-un", "vdp-kf"])
def test_packs_are_those_of_the_original(many: Path, tmp_path: Path, preset: str) -> None:
    few = {"vdp-un": "uniform,count=5,by=number", "vdp-kf": None}[preset]
    out, run = tmp_path, {"workers": 0, "max_skip_rate": 0.2}
    frames = sm.frames(many, out / "frames", preset=preset, sampler=few, **run)  # type: ignore[arg-type]
    tars = sm.export(frames, out / "tars", format="vdp", workers=0)
    theirs = concatenated(
        [s for tar in sorted((out / "tars/shards").glob("*.tar")) for s in read_grouped(tar)]
    )
    tokens = sm.tokenize(
        frames,
        out / "tokens",
        tokenizer="bundled",
        layout="patches",
        template="captions",
        max_length=7999,
        overlong="drop",
        space=SPACE,
        workers=0,
        max_skip_rate=1,
    )
    sm.plan(tokens, out / "packs.plan", capacity=8000, method="neighbours")
    sm.pack(tokens, out / "packs.plan", out / "ours", preset="vdp", samples=frames, workers=0)
    ours = [s for tar in sorted((out / "ours/shards").glob("*.tar")) for s in read_grouped(tar)]
    assert len(ours) == len(theirs) > 3
    for mine, other in zip(ours, theirs):
        assert {name: mine["json"][name] for name in other} == other
        check_pair(mine, TheirTokens().ids)
    sm.pack(tokens, out / "packs.plan", out / "bins", one_bos=1, order="planned", workers=0)
    (bin_path,) = (out / "bins/shards").glob("*.bin")
    joined = np.concatenate([pack["input_ids"] for pack in theirs])
    assert np.fromfile(bin_path, np.uint16).tolist() == joined.tolist()
    assert sm.check(out / "bins").sound
    assert sm.check(tars, same=out / "frames").sound


def test_videos_have_the_fields_that_readers_look_for(many: Path, tmp_path: Path) -> None:
    sm.export(many, tmp_path / "tars", format="vdp", workers=0)
    tars = sorted((tmp_path / "tars/shards").glob("*.tar"))
    for tar in tars:
        for number, sample in enumerate(read_grouped(tar)):
            fields = sample["json"]
            assert sample["key"] == fields["video_id"] == f"{number:09d}"
            assert fields["videos"] == [fields["video_id"]]
            assert fields["conversations"] == [
                {"from": "human", "value": "<video>"},
                {"from": "gpt", "value": fields["caption"]},
            ]
            assert sample["mp4"] == numbered_clip(20 + fields["extra"]["clip"], group=8)
    assert len(tars) == 3
    again = sm.ingest([str(tar) for tar in tars], tmp_path / "again", workers=0)
    assert again[0].document.text == "a cat runs"


def test_only_a_begin_token_is_left_out(many: Path, tmp_path: Path) -> None:
    text = {"tokenizer": "bundled", "template": "turns", "workers": 0, "max_skip_rate": 1.0}
    rows = tmp_path / "rows.jsonl"
    talk = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b."}]
    rows.write_text("\n".join(json.dumps({"messages": talk}) for _ in range(3)))
    shards = sm.ingest(rows, tmp_path / "shards", workers=0)
    tokens = sm.tokenize(shards, tmp_path / "tokens", **text)  # type: ignore[arg-type]
    sm.plan(tokens, tmp_path / "packs.plan", capacity=100, method="neighbours")
    with pytest.raises(sm.ShardmillError, match="does not begin with the token 7"):
        sm.pack(tokens, tmp_path / "packs.plan", tmp_path / "packs", one_bos=7, workers=0)
