"""The report: one HTML file with the page, the answers that it needs and its images.

It holds the same modules and styles that the server serves, joined into one script, and the answers
that its views ask for, from the same functions. A view that is not in the report says so.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from shardmill.errors import NotFound, ShardmillError
from shardmill.storage.text import dump_line
from shardmill.view.answers import answer, content, static_files
from shardmill.view.context import Context

NUM_PACKS = 24
NUM_UNITS = 50
THUMB = 320
FILM_MS = 500
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)
STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w.]+)"')
# JSON inside of a script element: these are the characters that could end it.
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a report carries: sections in order, answers and media by the address of a request."""

    title: str
    sections: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    media: dict[str, str] = field(default_factory=dict)


def make_report(context: Context) -> bytes:
    """Return the report on everything that the context shows."""
    bundle = Bundle(context.root.name)
    collect(context, bundle)
    plain = {
        "title": bundle.title,
        "sections": bundle.sections,
        "answers": bundle.answers,
        "media": bundle.media,
    }
    data = dump_line(plain).decode()
    for mark, escaped in ESCAPES.items():
        data = data.replace(mark, escaped)
    pages = {name: content.decode() for name, content in static_files().items()}
    styles = "\n".join(pages[name] for name in [*STYLE.findall(pages["index.html"]), "report.css"])
    script = join_modules(pages, "report")
    return (
        '<!doctype html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>shardmill report</title><style>{styles}</style></head><body>"
        f'<script type="application/json" id="bundle">{data}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    ).encode("utf-8", "surrogatepass")


def join_modules(pages: Mapping[str, str], entry: str) -> str:
    """Return modules as one script, each in a scope of its own, after those that it imports.

    `import { el } from "./dom.js"` becomes `const { el } = module_dom`.
    """
    joined: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in joined:
            return
        text = pages[f"{name}.js"]
        for _, other in IMPORT.findall(text):
            visit(other)
        names = ", ".join(found[1] for found in EXPORT.findall(text))
        body = EXPORT.sub(r"\1 \2", IMPORT.sub(r"const \1 = module_\2;", text))
        joined[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"

    visit(entry)
    return "\n".join(joined.values())


def collect(context: Context, bundle: Bundle) -> None:
    """Put sections and what they ask for into the bundle."""
    found = _ask(context, bundle, "map", {})
    bundle.sections.append({"view": "map"})
    for node in found["nodes"]:
        if node["state"] not in ("refused", "broken"):
            _collect_item(context, bundle, node["id"])


def _collect_item(context: Context, bundle: Bundle, id: str) -> None:
    page = _ask(context, bundle, "item", {"id": id})
    for view, name, asked in _wanted(page):
        try:
            for request, params in asked:
                answer_ = _ask(context, bundle, request, params)
                _keep_media(context, bundle, id, request, answer_)
        except (ShardmillError, OSError):
            continue
        bundle.sections.append({"id": id, "view": view, "name": name})


def _wanted(page: Mapping[str, Any]) -> Iterator[tuple[str, str, list[tuple[str, dict[str, Any]]]]]:
    """Yield (view, name, requests) of each section of an item."""
    id, content = page["id"], page["content"]
    if content == "plan":
        world = 1
        while world * 2 <= min(8, page["packs"]):
            world *= 2
        yield "overview", "", [("plots", {"id": id, "world": world})]
    elif content in ("tokens", "lengths"):
        yield "overview", "", [("plots", {"id": id})]
    else:
        yield "overview", "", []
    if page.get("skipped"):
        yield "rejected", "", [("rejects", {"id": id})]
    if content == "samples":
        yield "samples", "", [("samples", {"id": id, "at": 0, "count": 48})]
    if content in ("packs", "plan"):
        yield "packs", "", [("packs", {"id": id, "at": 0, "count": NUM_PACKS})]
    if content == "packs":
        yield "pack", "0", [("pack", {"id": id, "n": 0})]
    if content == "codes":
        yield "codes", "", [("codes", {"id": id, "at": 0, "count": NUM_PACKS})]


def _ask(context: Context, bundle: Bundle, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: str(value) for key, value in params.items()}
    found = answer(context, name, values)
    bundle.answers[address(name, values)] = found
    return found


def address(name: str, values: Mapping[str, str]) -> str:
    """Return a request as the page writes it: names in order, values escaped."""
    pairs = "&".join(
        sorted(f"{key}={quote(value, safe=_SAFE)}" for key, value in values.items() if value)
    )
    return f"{name}?{pairs}" if pairs else name


# What encodeURIComponent leaves as it is, besides letters, digits and "_.-~".
_SAFE = "!*'()"


def _keep_media(
    context: Context, bundle: Bundle, id: str, request: str, found: dict[str, Any]
) -> None:
    if request == "samples":
        for card in found["cards"]:
            for name, kind in list(card["kinds"].items())[:1]:
                _keep(context, bundle, id, card["number"], name, kind)
    elif request == "pack":
        _keep_pack(context, bundle, found)
    elif request == "codes":
        for image in found["images"]:
            at = image["sample_at"]
            if at is not None:
                _keep(context, bundle, at["id"], at["number"], image["medium"], "image")


def _keep_pack(context: Context, bundle: Bundle, pack: dict[str, Any]) -> None:
    for document in pack["documents"]:
        at = document["media_at"] or document["sample_at"]
        for medium in document["media"] if at else []:
            _keep(context, bundle, at["id"], at["number"], medium["name"], medium["kind"])
    row = pack["documents"][0]["tokens_at"] if pack["documents"] else None
    if row is not None:
        _ask(context, bundle, "row", {"id": row["id"], "n": row["number"]})


def _keep(context: Context, bundle: Bundle, id: str, number: int, name: str, kind: str) -> None:
    """Add a thumbnail of a medium to the bundle, if one can be made."""
    if kind == "audio":
        return
    asked = {"id": id, "n": str(number), "name": name, "w": str(THUMB)}
    if kind == "video":
        asked["ms"] = str(FILM_MS)
    try:
        image = content(context, "media", asked)
    except NotFound:
        return
    if isinstance(image, bytes):  # else it is a file of which no thumbnail can be made
        encoded = base64.b64encode(image).decode()
        bundle.media[address("media", asked)] = f"data:image/jpeg;base64,{encoded}"
