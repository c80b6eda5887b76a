from __future__ import annotations

import errno
import json
from types import ModuleType

import pytest

from shardmill.errors import (
    FormatError,
    SampleError,
    ShardmillError,
    UnitFailed,
    foreign,
    plugin,
)


class PanicException(BaseException):
    """What a panic of Rust is to Python."""


def raised(error: BaseException, module: str, *kinds: type[Exception]) -> BaseException:
    """Return what comes out of the gate when code of a module raises."""
    code = ModuleType(module)
    exec("def fail(error): raise error", code.__dict__)
    with pytest.raises(BaseException) as caught, foreign("broken image", *kinds):
        code.fail(error)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        KeyError("tag"),
        SyntaxError("no header"),
        RuntimeError("codec"),
        AttributeError("None"),
        RecursionError(),
        OSError("cut off"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        type("OwnError", (Exception,), {})("own"),
        PanicException("index out of bounds"),
    ],
)
def test_whatever_foreign_code_raises_is_a_reject_with_type_and_text(error: BaseException) -> None:
    reject = raised(error, "PIL.Image")
    assert isinstance(reject, SampleError)
    assert reject.reason == "broken image"
    assert type(error).__name__ in reject.detail
    assert str(error) in reject.detail


@pytest.mark.parametrize(
    ("error", "module"),
    [
        (KeyError("ours"), "shardmill.media.frames"),
        (MemoryError(), "PIL.Image"),
        (OSError(errno.ENOSPC, "No space left on device"), "PIL.Image"),
        (KeyboardInterrupt(), "PIL.Image"),
        (SystemExit(), "PIL.Image"),
        (FormatError("cut off", path="a.tar"), "PIL.Image"),
    ],
)
def test_bugs_of_ours_and_faults_of_the_machine_stop_the_unit(
    error: BaseException, module: str
) -> None:
    assert raised(error, module) is error


def test_errors_of_c_code_are_named_and_told_from_bugs() -> None:
    with pytest.raises(SampleError, match="JSONDecodeError"), foreign("bad", ValueError):
        json.loads("{")
    assert isinstance(raised(IndexError(), "shardmill.media.header", IndexError), SampleError)
    assert isinstance(raised(MemoryError(), "PIL.Image", Exception), MemoryError)


def test_details_are_short_and_hold_no_address() -> None:
    reject = raised(ValueError(f"bad {object()!r} [h264 @ 0x55d0c0ffee00]\n" + "x" * 999), "av")
    assert isinstance(reject, ShardmillError)
    assert "0x" not in str(reject)
    assert "\n" not in str(reject)
    assert len(str(reject)) < 400


class OwnShape:
    """A plugin of a user."""


def test_a_plugin_that_raises_by_mistake_stops_the_unit_and_is_named() -> None:
    told = r"the plugin .*test_errors:OwnShape failed at sample 'a-1': KeyError: 'text'"
    with pytest.raises(UnitFailed, match=told), plugin(OwnShape(), "a-1"):
        _ = {}["text"]  # type: ignore[var-annotated]
    with pytest.raises(SampleError, match="no text"), plugin(OwnShape(), "a-1"):
        raise SampleError("no text")
    with pytest.raises(MemoryError), plugin(OwnShape(), "a-1"):
        raise MemoryError
