"""Adapters: the shapes of particular data sets, which differ from the general ones by habit.

mmc4              {"text_list": ["One.", "Two."], "image_info": [{"matched_text_index": 1, ...}]}
prompt            {"prompt": "<image><image>", "txt": "A cat.", "image_name_list": ["0-0", "0-1"]}
unicontrol        {"source": "edges.png", "target": "cat.png", "prompt": "A cat."}
liquid            {"image_path": "cat.png", "text": "A cat.", "vqcode_512": [...]}
webvid            {"image": "a.mp4", "value": "A cat."}    or the public csv with `name`
internvid         {"YoutubeID": "x", "Start_timestamp": "00:00:01.000", ..., "Caption": "..."}
hd-vila           {"video": "a.mp4", "caption": "A cat."}
ego4d             {"video_path": "a.mp4", "caption": "A cat."}
how2link          {"clip_path": "/any/where/train/x/clip_3", "caption": "A cat."}
howto-interlink   {"clips": [{"clip_path": ..., "caption": ...}, ...], "summary": "..."}
videochat2        {"video": "a.mp4", "QA": [{"i": "Look.", "q": "What?", "a": "A cat."}]}
finevision        {"images": ["a.jpg"], "texts": [{"user": "What?", "assistant": "A cat."}]}
interleaved       {"images": ["a.jpg", null], "texts": [null, "A cat."]}
merlin            {"image_info": [{"image_name": "0.jpg"}], "text_list": "<image>#0-4.5# A man..."}
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.general import VideoShape, talk_segments
from shardmill.sources.shapes.shape import (
    MISMATCH,
    RowDocument,
    RowSegment,
    clip_in,
    count_placeholders,
    first_of,
    in_clip,
    is_missing,
    media_list,
    need_one,
    seconds_of,
    split_placeholders,
    text_of,
    unused,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmc4Shape:
    """MMC4: `text_list` and `image_info` with `matched_text_index`; the rest of it is kept.

    An image stands just before its sentence and shares its turn, so that a template can put it
    after the sentence instead. Images of one sentence keep their order.
    """

    media: tuple[str, ...] = ("image", "bytes", "path", "image_name", "raw_url")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        sentences = fields.get("text_list")
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise SampleError("missing field", "text_list must be a list of texts")
        images = self._by_sentence(fields.get("image_info") or [], len(sentences))
        segments: list[RowSegment] = []
        for turn, sentence in enumerate(sentences):
            segments += [RowSegment(kind="image", media=m, turn=turn) for m in images.get(turn, ())]
            segments.append(RowSegment(kind="text", text=sentence, turn=turn))
        if not segments:
            raise SampleError("empty document", "text_list is empty")
        return RowDocument(
            segments=tuple(segments),
            uses={"text_list": "text", "image_info": "image"},
            extra=unused(fields, {"text_list"}),
        )

    def _by_sentence(self, infos: Any, num_sentences: int) -> dict[int, list[Any]]:
        if not isinstance(infos, list):
            raise SampleError("missing field", "image_info must be a list")
        found: dict[int, list[Any]] = {}
        for number, info in enumerate(infos):
            at = info.get("matched_text_index") if isinstance(info, dict) else None
            if not isinstance(at, int) or not 0 <= at < num_sentences:
                detail = f"image {number} is matched to sentence {at!r} of {num_sentences}"
                raise SampleError("image without sentence", detail)
            name = first_of(info, self.media)
            if name is None:
                wanted = ", ".join(self.media)
                raise SampleError("missing field", f"image {number} has none of {wanted}")
            found.setdefault(at, []).append(info[name])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedShape:
    """OBELICS, OmniCorpus, MINT: `images` and `texts` are lists of one length that take turns.

    Each place holds an image or a text, and the other list has nothing there.
    """

    images: str = "images"
    texts: str = "texts"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        images, texts = _list(fields, self.images), _list(fields, self.texts)
        if len(images) != len(texts):
            detail = f"{len(images)} places for images, {len(texts)} for texts"
            raise SampleError(MISMATCH, detail)
        segments = []
        for turn, (image, text) in enumerate(zip(images, texts)):
            if not is_missing(image) and not is_missing(text):
                raise SampleError(MISMATCH, f"place {turn} holds an image and a text: {text!r:.60}")
            if not is_missing(image):
                segments.append(RowSegment(kind="image", media=image, turn=turn))
            elif not is_missing(text):
                words = text_of({self.texts: text}, self.texts)
                segments.append(RowSegment(kind="text", text=words, turn=turn))
        if not segments:
            raise SampleError("empty document", "neither an image nor a text")
        uses = {self.images: "image", self.texts: "text"}
        return RowDocument(segments=tuple(segments), uses=uses, extra=unused(fields, uses))


KEY_FRAME = re.compile(r"<[IP]image>")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """Frames that a video pipeline has packed already: `prompt` shows them, `txt` answers.

    Lists of both take turns. Key frames come with their times, "<Iimage>#0<Pimage>#41"; the marks
    stay text.
    """

    prompt: str = "prompt"
    text: str = "txt"
    image: tuple[str, ...] = ("images", "image", "image_name_list")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        prompts, texts = _texts(fields, self.prompt), _texts(fields, self.text)
        if len(prompts) != len(texts):
            raise SampleError("missing field", f"{len(prompts)} prompts, {len(texts)} texts")
        turns: list[dict[str, str]] = []
        for prompt, text in zip(prompts, texts):
            turns.append({"from": "human", "value": KEY_FRAME.sub("<image>", prompt)})
            turns.append({"from": "gpt", "value": text})
        images, uses = media_list(fields, self.image, "image")
        uses |= {self.prompt: "question", self.text: "answer"}
        segments = tuple(talk_segments(turns, images, []))
        return RowDocument(segments=segments, uses=uses, extra=unused(fields, uses))


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    given = _list(fields, name)
    if not all(isinstance(text, str) for text in given):
        raise SampleError("text is not text", f"{name!r} holds {fields[name]!r:.100}")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class UniControlShape:
    """UniControl: an image of a condition and a prompt ask for the image that they describe.

    `source` and the prompt are the user's, `target` is the assistant's answer.
    """

    source: str = "source"
    target: str = "target"
    text: tuple[str, ...] = ("value", "prompt", "caption")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        prompt = first_of(fields, self.text)
        missing = [n for n in (self.source, self.target) if is_missing(fields.get(n))]
        if prompt is None or missing:
            wanted = missing or [" or ".join(self.text)]
            raise SampleError("missing field", f"{', '.join(wanted)} holds nothing")
        segments = (
            RowSegment(kind="image", media=fields[self.source], role="user"),
            RowSegment(kind="text", text=text_of(fields, prompt), role="user"),
            RowSegment(kind="image", media=fields[self.target], role="assistant", turn=1),
        )
        uses = {self.source: "image", prompt: "question", self.target: "answer"}
        return RowDocument(segments=segments, uses=uses, extra=unused(fields, uses))


CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")
NO_CODES: tuple[Any, ...] = (None, "", "no", [])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidShape:
    """Liquid's rows: `image_path` and `text` or `text_prompt`, or plain text without an image.

    A row that holds codes needs no image any more; the codes stay among its other fields. An empty
    caption is one: Liquid trains on it.
    """

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a pair, or of a text for data_type "text_pretrain"."""
        names = ("text", "text_prompt")
        empty = next((name for name in names if fields.get(name) == ""), None)
        text = first_of(fields, names) or empty or need_one(fields, names)
        segments = [RowSegment(kind="text", text=text_of(fields, text))]
        has_codes = any(fields.get(name) not in NO_CODES for name in CODE_FIELDS)
        has_image = not is_missing(fields.get("image_path"))
        if fields.get("data_type") != "text_pretrain" and not (has_codes and not has_image):
            if not has_image:
                raise SampleError("missing field", "image_path holds nothing")
            segments.insert(0, RowSegment(kind="image", media=fields["image_path"]))
        uses = {text: "text", "image_path": "image"}
        return RowDocument(segments=tuple(segments), uses=uses, extra=unused(fields, uses))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebVidShape(VideoShape):
    """WebVid: the video is called `image`, or is at `contentUrl` in the public csv."""

    video: tuple[str, ...] = ("image", "video_path", "video", "contentUrl")
    text: tuple[str, ...] = ("value", "caption", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVidShape(VideoShape):
    """InternVid: files that were cut already are named by video, start and end.

    Of whole videos, take path="{YoutubeID}.mp4" with start="Start_timestamp" and
    end="End_timestamp".
    """

    text: tuple[str, ...] = ("Caption", "caption")
    path: str = "{YoutubeID}_{Start_timestamp}_{End_timestamp}.mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class HdVilaShape(VideoShape):
    """HD-VILA and its captioned part hd3m; `span` is the part of a whole video."""

    video: tuple[str, ...] = ("video", "video_path")
    text: tuple[str, ...] = ("caption", "value")
    clip: str = "span"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ego4dShape(VideoShape):
    """Ego4D: narrations of a video, or of a part of one."""

    text: tuple[str, ...] = ("caption", "value", "narration_text")
    start: str = "start_sec"
    end: str = "end_sec"


@dataclass(frozen=True, slots=True, kw_only=True)
class How2LinkShape(VideoShape):
    """One clip of How2link: the last parts of `clip_path` name its file, which is cut already.

    A row of that data set holds many clips: read them with the source `nested`.
    """

    video: tuple[str, ...] = ("clip_path",)
    text: tuple[str, ...] = ("caption",)
    clip: str = ""
    start: str = ""
    end: str = ""
    num_parts: int = 3
    suffix: str = ".mp4"

    def videos(self, fields: Mapping[str, Any]) -> tuple[list[Any], dict[str, str]]:
        """Return the path of the clip below the folder of all clips."""
        found, uses = VideoShape.videos(self, fields)
        return [last_parts(path, self.num_parts, self.suffix) for path in found], uses


@dataclass(frozen=True, slots=True, kw_only=True)
class HowtoInterlinkShape:
    """All clips of a video as one document: `clips` with `clip_path` and `caption`.

    A clip's turn is its number.

    A clip may say when it happens, in `clip` or in `start` and `end`. Its file is cut already, so
    the time belongs to the caption: it is the time of which the text speaks. A `summary` ends the
    document.
    """

    num_parts: int = 3
    suffix: str = ".mp4"
    summary: str = "summary"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        clips = fields.get("clips")
        if not isinstance(clips, list) or not clips:
            raise SampleError("missing field", "clips must be a list of clips")
        segments = [
            segment for number, clip in enumerate(clips) for segment in self._clip(clip, number)
        ]
        uses = {"clips": "video"}
        if not is_missing(fields.get(self.summary)):
            text = text_of(fields, self.summary)
            segments.append(RowSegment(kind="text", text=text, turn=len(clips)))
            uses[self.summary] = "text"
        return RowDocument(segments=tuple(segments), uses=uses, extra=unused(fields, uses))

    def _clip(self, clip: Any, number: int) -> list[RowSegment]:
        if not isinstance(clip, Mapping) or is_missing(clip.get("clip_path")):
            raise SampleError("missing field", f"clip {number} has no clip_path: {clip!r:.100}")
        if is_missing(clip.get("caption")):
            raise SampleError("missing caption", f"clip {number} has none")
        video = last_parts(clip["clip_path"], self.num_parts, self.suffix)
        return [
            RowSegment(kind="video", media=video, turn=number),
            RowSegment(
                kind="text",
                text=text_of(clip, "caption"),
                turn=number,
                time_s=clip_in(clip, "clip", "start", "end"),
            ),
        ]


def last_parts(path: Any, num_parts: int, suffix: str) -> str:
    """Return the end of a path: /any/where/train/x/clip_3 gives train/x/clip_3.mp4."""
    if not isinstance(path, str):
        raise SampleError("text is not text", f"a path is {path!r:.100}")
    kept = "/".join(path.split("/")[-num_parts:])
    return kept if kept.endswith(suffix) else kept + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoChat2Shape:
    """VideoChat2 and other tuning sets: `QA` or `conversations` about a video or images.

    Frames come as a list in `images`. Without placeholders the media stand before the first
    question; `start` and `end`, or `clip`, say which part of the video is meant.
    """

    talk: tuple[str, ...] = ("QA", "conversations", "value")
    image: tuple[str, ...] = ("image", "images")
    video: tuple[str, ...] = ("video", "videos", "video_path")
    clip: str = "clip"
    start: str = "start"
    end: str = "end"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        name = need_one(fields, self.talk)
        images, image_uses = media_list(fields, self.image, "image")
        videos, video_uses = media_list(fields, self.video, "video")
        uses = {name: "turns", **image_uses, **video_uses}
        document = RowDocument(
            segments=tuple(talk_segments(fields[name], images, videos)),
            uses=uses,
            extra=unused(fields, uses),
        )
        return in_clip(document, fields, self.clip, self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineVisionShape:
    """FineVision and The Cauldron: `texts` are questions and answers about the `images`.

    Without placeholders the images stand before the first question; a row without images is a
    conversation in text.
    """

    texts: str = "texts"
    images: tuple[str, ...] = ("images", "image")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        name = need_one(fields, (self.texts,))
        images, uses = media_list(fields, self.images, "image")
        uses[name] = "turns"
        segments = tuple(talk_segments(fields[name], images, []))
        return RowDocument(segments=segments, uses=uses, extra=unused(fields, uses))


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 1 << 27
MAX_BLOCK = 0xFFFF  # of deflate, stored
GROUP = re.compile(r"((?:<image>\s*)+)(#(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?#)")
BLACK = re.compile(r"\s*Black background\s*:\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MerlinShape:
    """Merlin: frames and what happens in them, in one text that marks each group by its time.

        <image><image>#0.0-4.5# A man opens a box. <image>#4.5-9.0# He takes a saw. Summary: ...

    Each group asks with its frames and its mark, the text after it answers; `question` asks for the
    summary. The mark stays text, as the model reads it, and is the time of frames and answer too;
    with `marks_are_seconds` false (marks on another scale) it is text only. "Black background: 640,
    360" among the images is a black frame of that size, which no file holds.
    """

    question: str = "Summary this video."
    summary: str = "Summary:"
    marks_are_seconds: bool = True

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        images = [_image(info) for info in _list(fields, "image_info")]
        text = "".join(map(str, _list(fields, "text_list")))
        segments = tuple(self._segments(text, images))
        uses = {"image_info": "image", "text_list": "turns"}
        return RowDocument(segments=segments, uses=uses, extra=unused(fields, uses))

    def _segments(self, text: str, images: list[Any]) -> Iterator[RowSegment]:
        said, _, summary = text.partition(self.summary)
        # Five pieces a group: frames, mark, its start, its end, and the text up to the next group.
        lead, *groups = GROUP.split(said)
        num_shown = sum(map(count_placeholders, groups[::5]))
        if not groups or count_placeholders(text) != num_shown or num_shown != len(images):
            detail = f"{count_placeholders(text)} <image>, {num_shown} of them before a #time# mark"
            raise SampleError(MISMATCH, f"{detail}, {len(images)} images")
        frames = iter(images)
        for turn, at in enumerate(range(0, len(groups), 5)):
            shown, mark, start, end, answer = groups[at : at + 5]
            time_s = self._time(start, end)
            for kind, words in split_placeholders(f"{lead}{shown}{mark}"):
                if kind == "text":
                    yield _user("text", 2 * turn, text=words, time_s=time_s)
                else:
                    yield _user("image", 2 * turn, media=next(frames), time_s=time_s)
            yield _answer(answer, 2 * turn + 1, time_s)
            lead = ""
        if summary.strip():
            last = 2 * (len(groups) // 5)
            yield _user("text", last, text=self.question)
            yield _answer(summary, last + 1, None)

    def _time(self, start: str, end: str | None) -> tuple[float, float] | None:
        if not self.marks_are_seconds:
            return None
        first, last = seconds_of(start), seconds_of(start if end is None else end)
        if last < first:
            raise SampleError("bad clip", f"#{start}-{end}# ends before it starts")
        return first, last


def _image(info: Any) -> Any:
    name = info.get("image_name") if isinstance(info, Mapping) else info
    if not isinstance(name, str) or not name:
        raise SampleError("missing field", f"an image has no image_name: {info!r:.100}")
    black = BLACK.fullmatch(name)
    if black is not None:
        return black_frame(int(black[1]), int(black[2]))
    return name.replace("data//", "data/")


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if is_missing(value):
        raise SampleError("missing field", f"{name} holds nothing")
    return value if isinstance(value, list) else [value]


def _user(kind: Any, turn: int, **more: Any) -> RowSegment:
    return RowSegment(kind=kind, role="user", turn=turn, **more)


def _answer(text: str, turn: int, time_s: tuple[float, float] | None) -> RowSegment:
    if not text.strip():
        raise SampleError("missing caption", f"nothing is said in turn {turn}")
    return RowSegment(kind="text", text=text, role="assistant", turn=turn, time_s=time_s)


def black_frame(width: int, height: int) -> bytes:
    """Return a black PNG of one bit a pixel, the same bytes on every machine.

    The pixels are stored, not compressed: compressors differ from version to version, and 640 x
    360 pixels are 29 kB as they are. A size that no image has is a `SampleError`.
    """
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise SampleError("bad size of a black frame", f"{width} x {height} pixels")
    one_bit_grey = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = bytes((1 + (width + 7) // 8) * height)
    return b"".join(
        [
            PNG_SIGNATURE,
            _chunk(b"IHDR", one_bit_grey),
            _chunk(b"IDAT", _stored(rows)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _stored(data: bytes) -> bytes:
    """Return a zlib stream of blocks that are stored as they are."""
    parts = [b"\x78\x01"]
    for start in range(0, len(data), MAX_BLOCK):
        block = data[start : start + MAX_BLOCK]
        is_last = start + MAX_BLOCK >= len(data)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ MAX_BLOCK), block]
    return b"".join([*parts, struct.pack(">I", zlib.adler32(data))])
