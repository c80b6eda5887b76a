from __future__ import annotations

import errno
import json
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from shardmill import errors
from shardmill.errors import (
    FormatError,
    MissingExtra,
    Requirement,
    SampleError,
    ShardmillError,
    UnitFailed,
    check_packages,
    foreign,
    missing_extra,
    need,
    numbers_of,
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


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed, of what four extras ask for."""
    asked = {
        "av": Requirement("17", ("video",)),
        "json": Requirement("2.10", ("text", "everything")),
        "pillow": Requirement("10", ("image", "codes")),
        "torch": Requirement("2.4", ("train", "codes", "everything")),
        "torchdata": Requirement("0.11", ("train",)),
    }
    there = {"json": "2.9.5", "pillow": "10.0.1"}
    monkeypatch.setattr(errors, "requirements", lambda: asked)
    monkeypatch.setattr(errors, "installed", there.get)
    monkeypatch.setattr(errors, "find_spec", lambda module: module)
    errors._check_floor.cache_clear()
    return there


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (["pillow"], None),
        (["av"], r"this needs av 17 or later \(not installed\): pip install 'shardmill\[video\]'"),
        (["torch"], r"shardmill\[codes\]'"),
        (["torch", "torchdata"], r"torch 2\.4 .*, torchdata 0\.11 .*: .*shardmill\[train\]'"),
        (["av", "json", "pillow"], r"json 2\.10 or later \(2\.9\.5 is.*shardmill\[text,video\]'"),
    ],
)
def test_all_packages_that_lack_are_told_with_the_fewest_extras(
    packages: dict[str, str], wanted: list[str], told: str | None
) -> None:
    if told is None:
        check_packages(wanted)
        return
    with pytest.raises(MissingExtra, match=told):
        check_packages(wanted)


def test_a_package_below_its_floor_is_not_used(packages: dict[str, str]) -> None:
    with pytest.raises(MissingExtra, match=r"2\.9\.5 is installed"):
        need("json", extra="text")
    packages["json"] = "2.10.0rc1"
    errors._check_floor.cache_clear()
    assert need("json", extra="text") is json


def test_an_import_that_failed_somewhere_says_what_to_install(packages: dict[str, str]) -> None:
    told = missing_extra(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))
    assert told is not None and "shardmill[codes]" in str(told)
    assert missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert missing_extra(ValueError("torch")) is None
    assert numbers_of("2.10.0rc1") > numbers_of("2.9")


def test_an_extra_brings_what_a_stage_needs() -> None:
    from shardmill.media.samplers import Uniform
    from shardmill.stages.codes import EncodeImages
    from shardmill.stages.frames import SampleFrames

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = {name: " ".join(of) for name, of in project["optional-dependencies"].items()}
    assert all(package in extras["codes"] for package in EncodeImages.needs)
    frames = SampleFrames(input_dir=Path(), sampler=Uniform()).needs
    assert all(package in f"{extras['video']} {extras['image']}" for package in frames)
