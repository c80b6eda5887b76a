"""Frames of a minute of 720p H.264 on one thread: python benchmarks/video_frames.py

Goals: 8 key frames and 16 frames between in a tenth of the time of ffprobe and two passes of ffmpeg
that write every frame; 16 exact frames at least as fast as decord, torchcodec and OpenCV, and the
same frames as theirs within one. Exact frames are those of the internal frame reader, in memory
like the peers'; key frames come from `sm.frames`, which reads and writes shards.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from made_data import FRAMES_EACH, NUM_PHOTOS, minute_clip
from side_by_side import Contest, Work, save_report, sized

NUM_FRAMES, COUNT = NUM_PHOTOS * FRAMES_EACH, 16
UNIFORM = [(2 * i + 1) * NUM_FRAMES // (2 * COUNT) for i in range(COUNT)]
THUMB = slice(None, None, 16)


def keyframes(clip: str) -> Work:
    """Our key frames and those between, as JPEG."""
    return _frames(clip, "keyframes,i_frames=8,p_frames=16")


def nearest(clip: str) -> Work:
    """Our key frames nearest to 16 places, as JPEG."""
    return _frames(clip, "nearest,count=16")


def _frames(clip: str, sampler: str) -> Work:
    import shardmill as sm

    folder = Path(tempfile.mkdtemp())
    table, out = folder / "clips.jsonl", folder / "frames"
    table.write_text(json.dumps({"video": clip, "caption": "a clip"}) + "\n")
    shards = sm.ingest(table, folder / "shards", workers=0)

    def work() -> int:
        shutil.rmtree(out, ignore_errors=True)
        return len(sm.frames(shards, out, sampler=sampler, workers=0, max_skip_rate=0))

    return work


def two_passes(clip: str) -> Work:
    """The types of all frames by ffprobe, then every frame as JPEG, twice."""

    def work() -> int:
        folder = Path(tempfile.mkdtemp())
        probe = "ffprobe -v error -select_streams v:0 -show_entries frame=pict_type -of csv"
        subprocess.run([*probe.split(), clip], check=True, stdout=subprocess.DEVNULL)
        for name in ("i", "p"):
            (folder / name).mkdir()
            ffmpeg = ["ffmpeg", "-v", "error", "-threads", "1", "-i", clip, "-q:v", "2"]
            subprocess.run([*ffmpeg, str(folder / name / "output_%d.jpg")], check=True)
        shutil.rmtree(folder)
        return 1

    return work


def chosen_pass(clip: str) -> Work:
    """A kinder way: ffprobe, then one pass of ffmpeg that writes the 24 frames alone."""
    chosen = "+".join(f"eq(n\\,{number})" for number in range(0, NUM_FRAMES, NUM_FRAMES // 24))

    def work() -> int:
        folder = Path(tempfile.mkdtemp())
        probe = "ffprobe -v error -select_streams v:0 -show_entries frame=pict_type -of csv"
        subprocess.run([*probe.split(), clip], check=True, stdout=subprocess.DEVNULL)
        ffmpeg = ["ffmpeg", "-v", "error", "-threads", "1", "-i", clip, "-vf", f"select={chosen}"]
        out = ["-vsync", "0", "-q:v", "2", str(folder / "output_%d.jpg")]
        subprocess.run([*ffmpeg, *out], check=True)
        shutil.rmtree(folder)
        return 1

    return work


def frames_by_shardmill(clip: str) -> np.ndarray:
    """Return our 16 frames."""
    from shardmill.media.frames import read_frames
    from shardmill.media.samplers import Uniform

    return np.stack([frame.pixels for frame in read_frames(clip, Uniform(count=COUNT))])


def frames_by_decord(clip: str) -> np.ndarray:
    """Return the 16 frames of decord, or of decord2, which has the same name."""
    import decord

    return decord.VideoReader(clip, num_threads=1).get_batch(UNIFORM).asnumpy()


def frames_by_torchcodec(clip: str) -> np.ndarray:
    """Return the 16 frames of torchcodec."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(clip, num_ffmpeg_threads=1, dimension_order="NHWC")
    return decoder.get_frames_at(UNIFORM).data.numpy()


def frames_by_opencv(clip: str) -> np.ndarray:
    """Return the 16 frames of OpenCV."""
    import cv2

    video = cv2.VideoCapture(clip, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    frames = []
    for number in UNIFORM:
        video.set(cv2.CAP_PROP_POS_FRAMES, number)
        frames.append(cv2.cvtColor(video.read()[1], cv2.COLOR_BGR2RGB))
    return np.stack(frames)


READERS: dict[str, tuple[Callable[[str], np.ndarray], str | None]] = {
    "shardmill": (frames_by_shardmill, None),
    "torchcodec 0.13": (frames_by_torchcodec, "torchcodec"),
    "decord 0.6": (frames_by_decord, "decord"),
    "decord2 3.4": (frames_by_decord, "decord2"),
    "OpenCV 5.0": (frames_by_opencv, "opencv"),
}


def reading(clip: str, reader: str) -> Work:
    """Return the work of one reader."""
    read = globals()[reader]

    def work() -> int:
        assert read(clip).shape == (COUNT, 720, 1280, 3)
        return 1

    return work


def compared(clip: str, reader: str, path: str) -> Work:
    """Keep small copies of a reader's frames, to compare who returned which."""
    read = globals()[reader]

    def work() -> int:
        np.save(path, read(clip)[:, THUMB, THUMB])
        return 1

    return work


def section_keyframes(clip: str, rounds: int) -> str:
    """Run the contest of key frames."""
    contest = Contest("8 key frames and 16 between, as JPEG", unit="clip")
    for name, function in {
        "shardmill keyframes": keyframes,
        "shardmill nearest key frames (8 of them)": nearest,
        "ffprobe, then every frame written twice": two_passes,
        "ffprobe, then the 24 frames written": chosen_pass,
    }.items():
        contest.add(name, __file__, function.__name__, clip=clip)
    contest.run(rounds)
    return f"## {contest.title}\n\n{contest.table(than='shardmill keyframes')}"


def section_uniform(clip: str, rounds: int) -> str:
    """Run the contest of 16 exact frames."""
    contest = Contest("16 exact frames, as RGB", unit="clip")
    for name, (read, peer) in READERS.items():
        contest.add(name, __file__, "reading", peer=peer, clip=clip, reader=read.__name__)
    contest.run(rounds)
    return f"## {contest.title}\n\n{contest.table(than='shardmill')}\n\n{agreement(clip)}"


def agreement(clip: str) -> str:
    """Say which frame each reader returned for each that was asked for."""
    truth = every_frame(clip)
    lines = ["| | frames that are the one asked for | furthest off |", "|---|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, (read, peer) in READERS.items():
            path = f"{folder}/{read.__name__}-{peer}.npy"
            contest = Contest(f"frames of {name}", unit="clip")
            contest.add(
                name, __file__, "compared", peer=peer, clip=clip, reader=read.__name__, path=path
            )
            contest.run(1)
            found = [closest(frame, truth) for frame in np.load(path)]
            off = [abs(a - b) for a, b in zip(found, UNIFORM)]
            lines.append(f"| {name} | {off.count(0)} of {COUNT} | {max(off)} |")
    return "\n".join(lines)


def every_frame(clip: str) -> np.ndarray:
    """Return small copies of all frames, decoded from the first to the last."""
    import av

    with av.open(clip) as container:
        frames = container.decode(container.streams.video[0])
        return np.stack([f.to_ndarray(format="rgb24")[THUMB, THUMB] for f in frames])


def closest(frame: np.ndarray, truth: np.ndarray) -> int:
    """Return the number of the frame that is most like this one."""
    return int(np.abs(truth.astype(np.int16) - frame).mean(axis=(1, 2, 3)).argmin())


if __name__ == "__main__":
    rounds = sized(3, 1)
    clip = str(minute_clip())
    sections = (section(clip, rounds) for section in (section_uniform, section_keyframes))
    save_report(__file__, "Frames of a video", sections)
