"""Columns that hold content, told by name and by value: what a shape leaves out of them is lost.

A row has columns for people (text, turns, answers, images, preferences) and columns about it (ids,
sizes, scores, licences). Of the first kind each must be used by the shape, or be named as extra by
the user: a table whose conversations are read as images without text would be wrong in silence.

    strong   the name and a value that fits it ("answer": "Yes"), media, bytes, lists of turns
    weak     a label, boxes and points, or a text of several words under any name

Strong ones count in every row, weak ones in rows that have no other text. Among the rows that are
looked at before the work, texts of several words count in any case: there a refusal costs a second,
later it costs the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import RowDocument, is_missing
from shardmill.sources.source import media_kind

REASON = "content used by nothing"
# The last word of a name says what it is: "alt_text" is a text, "text_language" is none. Of a
# preference any word does.
NAMES = """
text: text caption content question prompt response instruction output completion conversation
text: message dialog dialogue chat turn description query reply transcript transcription subtitle
text: summary article body document story passage context thought reasoning rationale cot input
text: explanation translation narration value qa sentence target
an answer: answer solution truth
images: image img picture photo frame mask thumbnail
videos: video clip
audio: audio wav speech sound
a side of a preference: chosen rejected preferred dispreferred winner loser
labels: label class category annotation box bbox point keypoint object option
where it is from: url uri link href src source origin page key id file filename path name
"""
LOOKS = {
    word: look
    for look, _, words in (line.partition(": ") for line in NAMES.split("\n"))
    for word in words.split()
}
MEDIA = ("images", "videos", "audio")
PREFERENCE = "a side of a preference"
PLACE = "where it is from"
SPOKEN = ({"role", "content"}, {"from", "value"}, {"user", "assistant"}, {"question", "answer"})
KINDS = {"image": "images", "video": "videos", "audio": "audio"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
NUM_WORDS = 8  # a licence or a title is shorter, most of the time
MAX_CHARS = 4096  # of a text that is looked at
NUM_ITEMS = 4  # of a list


def unused_content(
    fields: Mapping[str, Any], document: RowDocument, known: Collection[str], *, weak: bool
) -> dict[str, str]:
    """Return {column: what it looks like} of what a document leaves out of its row.

    `known` are columns that have another use, such as the key. `weak` counts texts of several
    words, whatever their names.
    """
    uses = document.uses or fields.keys() - document.extra.keys()
    left = fields.keys() - uses - set(known)
    if not left:
        return {}
    kinds = {segment.kind for segment in document.segments}
    found: dict[str, str] = {}
    for name in fields:
        if name not in left or is_missing(fields[name]):
            continue
        looks = looks_like(name, fields[name], kinds, weak=weak)
        # A json beside a caption file repeats the caption: nothing is lost then.
        is_again = looks != PREFERENCE and any(fields.get(n) == fields[name] for n in uses)
        if looks and not is_again:
            found[name] = looks
    return found


def check_row(fields: Mapping[str, Any], document: RowDocument, known: Collection[str]) -> None:
    """Raise `SampleError` if the document of a row leaves content of it out."""
    for name, looks in unused_content(fields, document, known, weak=False).items():
        detail = f"{name!r} holds {looks}: name another shape, or keep it by --extra {name}"
        raise SampleError(REASON, detail)


def looks_like(name: str, value: Any, beside: Collection[str], *, weak: bool) -> str:
    """Return what a column holds by its name and value, as a message says it; "" for no content.

    `beside` are the kinds of what the row has already.
    """
    words = _words(name)
    look = LOOKS.get(words[-1], "") if words else ""
    if isinstance(value, bytes | bytearray | memoryview):
        return look if look in MEDIA else "bytes"
    if look == "an answer":
        return look
    if isinstance(value, bool) and look == "labels":
        return "a verdict"
    if _is_number(value):
        is_label = look == "labels" and isinstance(value, list) and "text" not in beside
        return look if is_label else ""
    kind = _media_in(value)
    is_origin = isinstance(value, str) and all(LOOKS.get(word) == PLACE for word in words)
    if kind and not (is_origin and set(beside) - {"text"}):
        return kind
    if any(LOOKS.get(word) == PREFERENCE for word in words):
        return PREFERENCE
    if not isinstance(value, str) and look not in MEDIA and _is_turns(value):
        return "turns"
    if look and look not in ("labels", PLACE):
        return look
    if look == "labels" and "text" not in beside:
        return look
    if "text" not in beside:
        return "text" if _is_prose(value, 1) else ""
    return "text" if weak and _is_prose(value, NUM_WORDS) else ""


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, lower case, those we know singular: "altTexts" -> alt, text."""
    found = [word.lower() for word in WORD.findall(name[:100])]
    return tuple(
        next((one for one in (word, word[:-1], word[:-2]) if one in LOOKS), word) for word in found
    )


def _is_number(value: Any) -> bool:
    """Say whether a value is a number, or holds nothing else: a size, a score, an embedding."""
    if isinstance(value, list):
        return all(map(_is_number, value[:NUM_ITEMS]))
    return value is None or isinstance(value, int | float)


def _media_in(value: Any) -> str:
    """Return what media a value is by its look: the path or url of one, or what holds its bytes."""
    if isinstance(value, list):
        return next((found for item in value[:NUM_ITEMS] if (found := _media_in(item))), "")
    if isinstance(value, Mapping):
        has_bytes = isinstance(value.get("bytes"), bytes)
        return "media" if has_bytes else _media_in(value.get("path") or value.get("url"))
    if not isinstance(value, str):
        return ""
    if value.startswith("data:image/"):
        return "images"
    place = value[:MAX_CHARS].partition("?")[0] if "://" in value else value[-MAX_CHARS:]
    # "Look at cat.jpg" is a sentence, and "app.ts" a program.
    if "." not in place[-6:] or place.endswith(".ts") or (" " in place and "/" not in place):
        return ""
    kind = media_kind(place)
    return KINDS.get(kind or "", "")


def _is_turns(value: Any) -> bool:
    turns = value[:NUM_ITEMS] if isinstance(value, list) else [value]
    first = next((turn for turn in turns if isinstance(turn, Mapping)), {})
    return any(spoken <= first.keys() for spoken in SPOKEN)


def _is_prose(value: Any, num_words: int) -> bool:
    """Say whether a value is a text of more than so many words, or a sentence where one will do."""
    if isinstance(value, list):
        return any(_is_prose(item, num_words) for item in value[:NUM_ITEMS])
    if not isinstance(value, str) or value[:1] in ("{", "["):
        return False  # JSON about the row, such as exif
    if num_words == 1 and value.endswith((".", "!", "?")):
        return True
    # Languages without spaces count by their letters.
    num_letters = sum(letter > "\u2e7f" for letter in value[: 4 * NUM_WORDS])
    return len(value[:MAX_CHARS].split(None, num_words)) > num_words or num_letters > 2 * num_words
