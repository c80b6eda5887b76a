"""Plugins, specs, sizes, parts and engines as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.api.values import to_bytes, to_engine, to_part, to_plugin, to_spec
from shardmill.errors import ConfigError
from shardmill.model.codec import parse_plugin
from shardmill.model.space import TokenSpace
from shardmill.plugins import FILTERS
from shardmill.running.local import Local
from shardmill.running.ray import Ray
from shardmill.running.slurm import Slurm, TaskShape
from shardmill.sources.filters import HasMedia


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("text", {"kind": "text"}),
        ("aspect_ratio,max_ratio=2", {"kind": "aspect_ratio", "max_ratio": 2}),
        ("my.module:Mine,a=b c,d=1.5", {"kind": "my.module:Mine", "a": "b c", "d": 1.5}),
        (
            'words,words=["a","b,c"],whole=true',
            {"kind": "words", "words": ["a", "b,c"], "whole": True},
        ),
        ('x,m={"a":1,"b":2},n=3', {"kind": "x", "m": {"a": 1, "b": 2}, "n": 3}),
        ("x,equation=a=b", {"kind": "x", "equation": "a=b"}),
    ],
)
def test_plugin(text: str, plain: dict[str, Any]) -> None:
    assert parse_plugin(text) == plain


def test_a_spec_has_the_fields_that_are_given() -> None:
    given = to_spec('text_size=40,added=["a","b"]', TokenSpace, where="--space")
    assert given == TokenSpace(text_size=40, added=("a", "b"))
    with pytest.raises(ConfigError, match="--space has no field 'size'"):
        to_spec("size=40", TokenSpace, where="--space")


def test_a_plugin_is_a_string_a_table_or_itself() -> None:
    made = HasMedia(kinds=("video",))
    assert to_plugin(FILTERS, 'media,kinds=["video"]', where="filter") == made
    assert to_plugin(FILTERS, {"kind": "media", "kinds": ["video"]}, where="filter") == made
    assert to_plugin(FILTERS, made, where="filter") is made
    with pytest.raises(ConfigError, match="filter media has no field 'kind_'"):
        to_plugin(FILTERS, {"kind": "media", "kind_": 1}, where="filter")
    with pytest.raises(ConfigError, match="filter must be 'kind,field=value' or a table, got 3"):
        to_plugin(FILTERS, 3, where="filter")


def test_a_field_without_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_plugin("text_length,200")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("500MB", 500_000_000),
        ("1GiB", 1 << 30),
        ("1.5 kB", 1500),
        ("2M", 2_000_000),
    ],
)
def test_size(text: str, size: int) -> None:
    assert to_bytes(text) == size


@given(st.integers(0, 1 << 50))
def test_a_plain_number_is_itself(number: int) -> None:
    assert to_bytes(str(number)) == number


@pytest.mark.parametrize("text", ["", "-5", "many", "5 PB", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        to_bytes(text)


@pytest.mark.parametrize("part", ["3/8", (3, 8)])
def test_part(part: Any) -> None:
    assert to_part(part) == (3, 8)


@pytest.mark.parametrize("part", ["3", "0/8", "9/8", "a/b", "1/", "-1/2"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ConfigError, match="part"):
        to_part(part)


CLUSTER = """
kind = "slurm"
tasks = 101
at_once = 25

[task]
partition = "preempt"
time = "4:00:00"
gpus = 1
cpus = 4
memory = "16G"
warn_s = 600
options = ["--account=vision"]
"""


def test_what_on_understands(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    shape = TaskShape(
        partition="preempt",
        time="4:00:00",
        gpus=1,
        cpus=4,
        memory="16G",
        warn_s=600,
        options=("--account=vision",),
    )
    expected = Slurm(tasks=101, at_once=25, task=shape)
    assert to_engine(str(tmp_path / "cluster.toml")) == expected
    assert to_engine("local") == Local()
    assert to_engine("ray") == Ray()
    assert to_engine("ray,gpus=0.5,cpus=2") == Ray(gpus=0.5, cpus=2)
    assert to_engine("ray://head:10001") == Ray(address="ray://head:10001")
    assert to_engine("ray://head:10001,gpus=1") == Ray(address="ray://head:10001", gpus=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kubernetes", "on: unknown kind 'kubernetes'"),
        ("gone.toml", "No such file"),
        ("ray,gpus=many", "gpus must be float"),
        ("ray,gpu=1", "on has no field 'gpu'; did you mean 'gpus'"),
        ("ray,cpus=0", "needs CPUs or GPUs"),
    ],
)
def test_mistakes_in_engines_are_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        to_engine(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kind = slurm", "Invalid value"),
        ("tasks = 3", "needs a kind: one of local, ray, slurm"),
        ('kind = "slurm"\ntask = 3', "task must be dict"),
        ('kind = "slurm"\ntasks = 0', "must be positive"),
        ('kind = "slurm"\n[task]\ncores = 3', "has no field 'cores'"),
    ],
)
def test_mistakes_in_an_engines_file_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(content.replace("\\\n", "\n"))
    with pytest.raises(ConfigError, match=says):
        to_engine(str(path))
