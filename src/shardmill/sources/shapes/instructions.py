"""Rows that ask for something in one column and hold the answer in another, as text or an image.

{"instruction": "Translate.", "input": "Rot", "output": "Red", "history": [["Hi", "Hello"]]}
{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", ...}]}
{"image": "a.jpg", "question": "Which colour?", "answer": "Red"}
{"image_url": "a.jpg", "label": "cup", "points": [{"x": 10.2, "y": 20}]}              points
{"original_image": "a.jpg", "edit_prompt": "Make it blue", "edited_image": "b.jpg"}   edit
{"image_list": [a, b, c], "instruction_list": [["Make it blue"], ["Now green"]]}      edit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from shardmill.errors import SampleError
from shardmill.sources.shapes.general import IMAGE_FIELDS, VIDEO_FIELDS, MessagesShape
from shardmill.sources.shapes.shape import (
    RowDocument,
    RowSegment,
    count_placeholders,
    first_of,
    is_missing,
    media_list,
    need_one,
    text_of,
    unused,
)

QUESTIONS = ("instruction", "query", "question", "prompt")
ANSWERS = ("output", "response", "completion", "answer", "answers")
Several = Literal["refuse", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionShape:
    """A question and its answer: alpaca, dolly, OpenOrca, ms-swift's old form, TRL's, VQA.

    `context` follows the question on a line of its own, as LLaMA-Factory and ms-swift put it.
    `history` are earlier questions and answers. Where question and answer are turns, they are one
    conversation. Media without placeholders stand before the first question. Of several answers
    that differ, `several` says to take the "first".
    """

    question: tuple[str, ...] = QUESTIONS
    context: tuple[str, ...] = ("input", "context")
    answer: tuple[str, ...] = ANSWERS
    history: str = "history"
    system: tuple[str, ...] = ("system", "system_prompt")
    image: tuple[str, ...] = IMAGE_FIELDS
    video: tuple[str, ...] = VIDEO_FIELDS
    several: Several = "refuse"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        question, answer = need_one(fields, self.question), need_one(fields, self.answer)
        images, uses = media_list(fields, self.image, "image")
        videos, video_uses = media_list(fields, self.video, "video")
        uses |= video_uses | {question: "question", answer: "answer"}
        if isinstance(fields[question], list):
            turns = [*fields[question], *_turns(fields, answer)]
        else:
            turns = self._earlier(fields, uses)
            turns += [_turn("user", self._asked(fields, question, uses))]
            text = only_text(fields[answer], answer, self.several, "instruction")
            turns += [_turn("assistant", text)]
            self._show(turns, len(images), len(videos))
        if (system := first_of(fields, self.system)) is not None:
            turns.insert(0, _turn("system", text_of(fields, system)))
            uses[system] = "system"
        row = {"messages": turns, "images": images, "videos": videos}
        extra = unused(fields, uses)
        if isinstance(fields[answer], list) and not isinstance(fields[question], list):
            extra[answer] = fields[answer]
        segments = MessagesShape().shape(row).segments
        return RowDocument(segments=segments, uses=uses, extra=extra)

    def _asked(self, fields: Mapping[str, Any], question: str, uses: dict[str, str]) -> str:
        text = text_of(fields, question)
        context = first_of(fields, self.context)
        # Another one that holds something was not used, and is found as such.
        empty = (name for name in self.context if name in fields and is_missing(fields[name]))
        uses |= dict.fromkeys(empty, "question")
        if context is None:
            return text
        uses[context] = "question"
        return f"{text}\n{text_of(fields, context)}"

    def _earlier(self, fields: Mapping[str, Any], uses: dict[str, str]) -> list[dict[str, str]]:
        pairs = fields.get(self.history)
        if self.history in fields:
            uses[self.history] = "turns"
        turns = []
        for pair in pairs or []:
            if not isinstance(pair, list | tuple) or [type(text) for text in pair] != [str, str]:
                detail = f"{self.history!r} holds {pair!r:.60}, not [question, answer]"
                raise SampleError("bad history", detail)
            turns += [_turn("user", pair[0]), _turn("assistant", pair[1])]
        return turns

    def _show(self, turns: list[dict[str, str]], num_images: int, num_videos: int) -> None:
        asked = [turn for turn in turns if turn["role"] == "user"]
        if not any(count_placeholders(turn["content"]) for turn in asked):
            shown = "<image>" * num_images + "<video>" * num_videos
            asked[0]["content"] = f"{shown}{asked[0]['content']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsShape:
    """PixMo's points: what to point at, and where it is, in percent of width and height.

    The answer is written as Molmo writes it; the numbers stay beside it. None to be seen is an
    answer, too.
    """

    image: tuple[str, ...] = IMAGE_FIELDS
    label: str = "label"
    points: str = "points"
    ask: str = "Point to {label}."
    none: str = "There are none."

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        images, uses = media_list(fields, self.image, "image")
        if not images:
            raise SampleError("missing field", f"none of {', '.join(self.image)} holds anything")
        label = text_of(fields, need_one(fields, (self.label,)))
        segments = [RowSegment(kind="image", media=image, role="user") for image in images]
        asked = self.ask.replace("{label}", label)
        segments.append(RowSegment(kind="text", text=asked, role="user"))
        answer = self._answer(fields.get(self.points), label)
        segments.append(RowSegment(kind="text", text=answer, role="assistant", turn=1))
        uses |= {self.label: "question", self.points: "answer"}
        extra = unused(fields, uses.keys() - {self.points})
        return RowDocument(segments=tuple(segments), uses=uses, extra=extra)

    def _answer(self, points: Any, label: str) -> str:
        try:
            found = [(float(point["x"]), float(point["y"])) for point in points or ()]
        except (KeyError, TypeError, ValueError) as error:
            raise SampleError("bad points", f"{points!r:.60} are no points x, y") from error
        if not found:
            return self.none
        if len(found) == 1:
            return (
                f'<point x="{found[0][0]:.1f}" y="{found[0][1]:.1f}" alt="{label}">{label}</point>'
            )
        places = " ".join(f'x{n}="{x:.1f}" y{n}="{y:.1f}"' for n, (x, y) in enumerate(found, 1))
        return f'<points {places} alt="{label}">{label}</points>'


@dataclass(frozen=True, slots=True, kw_only=True)
class EditShape:
    """An image, what to change, and the image that comes out; or a chain of such edits.

    The user shows the first image and asks, the assistant answers by an image. Of several ways to
    ask for one edit, `several` says to take the "first". Captions of the two images stay beside.
    """

    source: tuple[str, ...] = ("original_image", "source_img", "source_image", "input_image")
    target: tuple[str, ...] = ("edited_image", "target_img", "target_image", "output_image")
    instruction: tuple[str, ...] = ("edit_prompt", "edit_instruction", "instruction", "prompt")
    images: str = "image_list"
    instructions: str = "instruction_list"
    captions: tuple[str, ...] = ("original_prompt", "edited_prompt")
    several: Several = "refuse"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        if isinstance(fields.get(self.images), list):
            images, asked = fields[self.images], fields.get(self.instructions)
            uses = {self.images: "image", self.instructions: "question"}
        else:
            names = [need_one(fields, wanted) for wanted in (self.source, self.target)]
            said = need_one(fields, self.instruction)
            images, asked = [fields[name] for name in names], [fields[said]]
            uses = {**dict.fromkeys(names, "image"), said: "question"}
        if not isinstance(asked, list) or len(images) != len(asked) + 1 or not asked:
            num = len(asked) if isinstance(asked, list) else "no"
            raise SampleError("images and edits do not match", f"{len(images)} images, {num} edits")
        segments = [RowSegment(kind="image", media=images[0], role="user")]
        for number, (text, made) in enumerate(zip(asked, images[1:])):
            words = only_text(text, "instruction", self.several, "edit")
            turn = 2 * number
            segments.append(RowSegment(kind="text", text=words, role="user", turn=turn))
            segments.append(RowSegment(kind="image", media=made, role="assistant", turn=turn + 1))
        extra = unused(fields, uses)
        uses |= {name: "kept beside" for name in self.captions if name in fields}
        return RowDocument(segments=tuple(segments), uses=uses, extra=extra)


def only_text(value: Any, name: str, several: Several, shape: str) -> str:
    """Return a text, or the one that a list of texts means: the same every time, or the first."""
    if isinstance(value, list) and value:
        if several == "refuse" and any(a != b for a, b in pairwise(value)):
            detail = f"{name!r} holds {len(value)}: take the first by --shape {shape},several=first"
            raise SampleError("several texts", f"{detail}: {value!r:.100}")
        value = value[0]
    return text_of({name: value}, name)


def _turns(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    if not isinstance(fields[name], list):
        raise SampleError("text is not text", f"{name!r} holds no turns, as what asks for it does")
    return list(fields[name])


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
