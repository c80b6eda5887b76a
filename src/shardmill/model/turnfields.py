"""What messages carry besides their text: tool calls, and which call a tool answers.

A sample keeps it in `extra["turn_fields"]`, by the number of the turn. Tools and their calls are
kept as JSON text, because templates write them out and a stored sample sorts its keys:

    {"1": {"tool_calls": '[{"type": "function", "function": {"name": "add", ...}}]'},
     "2": {"tool_call_id": "a1", "name": "add"}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as shortened
from typing import Any

import orjson

from shardmill.errors import SampleError
from shardmill.model.sample import Sample

EXTRA_NAME = "turn_fields"
KEPT = ("tool_calls", "tool_call_id", "name")
MAX_DEPTH = 64


def kept_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says besides its text; columns that a table left empty are not it."""
    return {name: message[name] for name in KEPT if message.get(name) not in (None, "", [])}


def stored_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a message in the form that samples store."""
    return {n: as_written(v) if n == "tool_calls" else v for n, v in kept_fields(message).items()}


def as_written(value: Any) -> str:
    """Return a list of tools or calls as JSON text, its keys in the order of the row."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise SampleError("not JSON", f"tools or their calls: {error}") from error


def turn_fields(sample: Sample) -> dict[int, dict[str, Any]]:
    """Return the fields of each turn that has any; those of no known form are a `SampleError`."""
    stored = sample.extra.get(EXTRA_NAME) or {}
    if not isinstance(stored, Mapping):
        raise SampleError("bad turn fields", f"not an object: {shortened(stored)}")
    return {_number(turn): _checked(turn, fields) for turn, fields in stored.items()}


def tools_of(sample: Sample, field: str) -> list[Any] | None:
    """Return the tools of a sample: a list of schemas, or the JSON of one; None if it has none."""
    tools = sample.extra.get(field)
    if tools is None or tools == "":
        return None
    tools = _parsed(tools, "bad tools", repr(field))
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise SampleError("bad tools", f"{field!r} is no list of objects: {shortened(tools)}")
    return tools


def change_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Return a JSON value with every text in it changed, the names of fields too."""
    if isinstance(value, str):
        return change(value)
    if depth == MAX_DEPTH:
        raise SampleError("nested too deep", f"tools or their calls go below {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [change_texts(item, change, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {
            change_texts(name, change, depth): change_texts(item, change, depth + 1)
            for name, item in value.items()
        }
    return value


def _parsed(value: Any, reason: str, where: str) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError as error:
        raise SampleError(reason, f"{where} is not JSON: {error}") from error


def _number(turn: object) -> int:
    if isinstance(turn, str) and turn.isascii() and turn.isdigit() and len(turn) < 10:
        return int(turn)
    raise SampleError("bad turn fields", f"{shortened(turn)} is no number of a turn")


def _checked(turn: str, fields: Any) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise SampleError("bad turn fields", f"turn {turn}: {shortened(fields)}")
    found = kept_fields(fields)
    if "tool_calls" not in found:
        return found
    calls = _parsed(found["tool_calls"], "bad tool calls", f"turn {turn}")
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise SampleError("bad tool calls", f"turn {turn}: {shortened(calls)} is no list of calls")
    return {**found, "tool_calls": calls}
