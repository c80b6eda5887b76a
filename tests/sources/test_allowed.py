"""Rows read below their folder and what the user allows, and on the public web; nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from web_server import serving

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.sample import Origin
from shardmill.sources.allowed import Allowed, check_address
from shardmill.sources.download import Patience, download
from shardmill.sources.fetch import Fetcher
from shardmill.sources.folder import FolderSource
from shardmill.sources.guess import shape_of
from shardmill.sources.nemo import NemoSource
from shardmill.sources.source import Row, list_files, walk
from shardmill.sources.tables import TableSource, table_stem

SECRET = b"secret"
QUICK = Patience(timeout_s=2.0, num_tries=1)


@pytest.fixture
def row(tmp_path: Path) -> Iterator[Row]:
    """A row in tmp_path/in; tmp_path/out holds what it must not read."""
    for name in ("in", "out"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "a.png").write_bytes(SECRET)
        database = lmdb.open(str(tmp_path / name / "sub" / "a.lmdb"), map_size=1 << 20)
        with database.begin(write=True) as transaction:
            transaction.put(b"a", SECRET)
        database.close()
    (tmp_path / "in" / "link.png").symlink_to("../out/sub/a.png")
    (tmp_path / "in" / "dir").symlink_to("../out/sub")
    (tmp_path / "in" / "inside.png").symlink_to("sub/a.png")
    (tmp_path / "in" / "data.lmdb").mkdir()
    (tmp_path / "in" / "data.lmdb" / "data.mdb").symlink_to("../../out/sub/a.lmdb/data.mdb")
    yield Row(
        key="k",
        origin=Origin(source="s", path="p", row=0),
        media_dir=str(tmp_path / "in"),
    )


def outside(tmp_path: Path) -> list[str]:
    """Return names of files in tmp_path/out as a row of tmp_path/in may write them."""
    return [
        f"{tmp_path}/out/sub/a.png",
        f"file://{tmp_path}/out/sub/a.png",
        f"{tmp_path}/in/../out/sub/a.png",
        "../out/sub/a.png",
        "sub/../../out/sub/a.png",
        "file://../out/sub/a.png",
        "link.png",
        "dir/a.png",
        "dir/a.lmdb::a",
        "data.lmdb::a",
        f"{tmp_path}/out/sub/a.lmdb::a",
    ]


def refusal(fetcher: Fetcher, reference: Any, row: Row) -> SampleError:
    with pytest.raises(SampleError) as caught:
        fetcher.fetch(reference, row)
    return caught.value


def test_a_path_that_leads_out_is_refused_until_it_is_allowed(tmp_path: Path, row: Row) -> None:
    with closing(Fetcher()) as fetcher:
        for name in outside(tmp_path):
            error = refusal(fetcher, name, row)
            assert error.reason == "path not allowed", name
            assert f"add --allow {tmp_path}/out/sub" in error.detail, name
            assert SECRET.decode() not in error.detail
        for name in ("sub/a.png", "inside.png", f"{tmp_path}/in/sub/a.png"):
            assert fetcher.fetch(name, row) == SECRET
        allowed = replace(row, allow=(f"{tmp_path}/out",))
        for name in outside(tmp_path):
            assert fetcher.fetch(name, allowed) == SECRET, name


def test_a_neighbour_with_the_same_beginning_is_outside(tmp_path: Path, row: Row) -> None:
    (tmp_path / "in-2").mkdir()
    (tmp_path / "in-2" / "a.png").write_bytes(SECRET)
    with closing(Fetcher()) as fetcher:
        assert refusal(fetcher, "../in-2/a.png", row).reason == "path not allowed"


def test_a_folder_that_the_user_named_may_be_a_link(tmp_path: Path, row: Row) -> None:
    (tmp_path / "named").symlink_to("in")
    with closing(Fetcher()) as fetcher:
        linked = replace(row, media_dir=str(tmp_path / "named"))
        for name in ("sub/a.png", f"{tmp_path}/named/sub/a.png", f"{tmp_path}/in/sub/a.png"):
            assert fetcher.fetch(name, linked) == SECRET


def test_a_link_that_changes_after_it_was_looked_at_is_not_followed(
    tmp_path: Path, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "in" / "inside.png"
    judged = Allowed.check_real

    def change(self: Allowed, place: str, real: str) -> None:
        judged(self, place, real)
        if place.endswith("inside.png"):
            link.unlink()
            link.symlink_to("../out/other.png")

    (tmp_path / "out" / "other.png").write_bytes(b"other")
    monkeypatch.setattr(Allowed, "check_real", change)
    with closing(Fetcher()) as fetcher:
        assert fetcher.fetch("inside.png", row) == SECRET


def test_no_descriptor_stays_open(tmp_path: Path, row: Row) -> None:
    before = len(os.listdir("/dev/fd"))
    with closing(Fetcher()) as fetcher:
        for name in ("sub/a.png", "gone.png", "sub", *outside(tmp_path)):
            with pytest.raises(SampleError) if name != "sub/a.png" else closing(fetcher):
                fetcher.fetch(name, row)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://other/a.png", "store not allowed"),
        ("s3://bucket/elsewhere/a.png", "store not allowed"),
        ("s3://bucket/data/../elsewhere/a.png", "store not allowed"),
        ("s3://bucket/data/%2e%2e/elsewhere/a.png", "store not allowed"),
        ("s3://bucket/data-2/a.png", "store not allowed"),
        ("gs://bucket/data/a.png", "store not allowed"),
        ("abfss://box@attacker.example/a.png", "store not allowed"),
        ("s3://other/a.tar::b", "store not allowed"),
        ("http://example.com/a.tar::b", "address not allowed"),
        ("/etc/passwd", "path not allowed"),
        ("../elsewhere/a.png", "path not allowed"),
        ("http://[::1/x", "bad url"),
        ("http://[::1/x.tar::b", "bad url"),
        ("s3:///x", "bad url"),
        ("http:///x", "bad url"),
        ("http://a:b/x", "bad url"),
        ("http://a:99999/x", "bad url"),
        ("https://user:secret@example.com/x", "bad url"),
        ("http://" + "ü" * 64 + ".example/x", "bad url"),
        ("http://ü..example/x", "bad url"),
        ("http://xn--\ud800.example/x", "bad url"),
        ("http://\u2100.example/x", "bad url"),
    ],
)
def test_urls_of_stores_that_nobody_named_and_broken_ones_are_rejects(
    row: Row, url: str, reason: str
) -> None:
    with closing(Fetcher()) as fetcher:
        remote = replace(row, media_dir="s3://bucket/data")
        assert not fetcher.announce(url, remote)
        error = refusal(fetcher, url, remote)
        assert error.reason == reason
        assert "secret" not in str(error)
        assert ("add --allow " in error.detail) == (reason != "bad url")


def test_what_the_user_named_may_be_read() -> None:
    allowed = Allowed.below("s3://bucket/data", ("gs://other", "http://web.example:8000/tars"))
    for place in (
        "s3://bucket/data/a.png",
        "gs://other/any/a.tar",
        "http://web.example:8000/tars/a.tar",
    ):
        assert allowed.locate(place, is_container=True) == place
    assert allowed.locate("sub/a.png") == "s3://bucket/data/sub/a.png"
    assert allowed.hosts == {"web.example:8000"}


PRIVATE = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("0.0.0.0", "100.64.0.1", "100.100.100.200", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
    *("168.63.129.16", "192.0.0.192", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"),
    *("fc00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    with pytest.raises(SampleError, match=r"address not allowed: .* add --allow http://a\.example"):
        check_address("a.example", 80, ["8.8.8.8", address], frozenset())
    check_address("A.example.", 80, [address], frozenset({"a.example:80"}))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_not_refused(address: str) -> None:
    check_address("a.example", 80, [address], frozenset())


def resolve_to(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[str]]) -> list[str]:
    """Let names have these addresses; return the list that names are written to when asked for."""
    asked: list[str] = []
    getaddrinfo = socket.getaddrinfo

    def answer(host: str, port: int, *args: Any, **named: Any) -> list[Any]:
        if host not in answers:
            return getaddrinfo(host, port, *args, **named)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in answers[host]]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"),
        *("localhost", "LOCALHOST", "①②⑦.⓪.⓪.①", "rebound.example"),
    ],
)
def test_every_way_to_write_this_machine_is_refused(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, {"rebound.example": ["127.0.0.1"]})
    with serving({"a.png": SECRET}) as url:
        port = url.rpartition(":")[2]
        for scheme in ("http", "https"):
            with pytest.raises(SampleError, match="address not allowed"):
                download(f"{scheme}://{host}:{port}/a.png", 100, QUICK)


def test_a_name_is_looked_up_once_and_its_address_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = resolve_to(monkeypatch, {"a.example": ["127.0.0.1"]})
    with serving({"a.png": SECRET}) as url:
        port = url.rpartition(":")[2]
        hosts = frozenset({f"a.example:{port}"})
        assert download(f"http://a.example:{port}/a.png", 100, QUICK, hosts) == SECRET
    assert asked == ["a.example"]


def test_a_proxy_may_be_anywhere_but_numbers_are_judged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving({"http://a.example/a.png": SECRET}) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert download("http://a.example/a.png", 100, QUICK) == SECRET
        for host in ("169.254.169.254", "2852039166", "127.0.0.1.", "localhost"):
            with pytest.raises(SampleError, match="address not allowed"):
                download(f"http://{host}/a.png", 100, QUICK)


def test_a_caption_that_leads_out_is_a_reject(tmp_path: Path, row: Row) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (tmp_path / "secret.txt").write_bytes(SECRET)
    (folder / "1.png").write_bytes(b"x")
    (folder / "1.txt").symlink_to("../secret.txt")
    for allow in ((), (str(tmp_path),)):
        source = FolderSource(dir=str(folder), allow=allow)
        with source.open() as read:
            (part,) = source.parts(None)
            (found,) = read(part.input)
        if allow:
            assert found.fields["text"] == SECRET.decode()
        else:
            assert found.problem is not None
            assert found.problem.reason == "path not allowed"
            assert "text" not in found.fields
            with pytest.raises(ConfigError, match=rf"no row .* path not allowed: .*{tmp_path}"):
                shape_of(source)


def test_links_that_lead_out_of_a_folder_stop_its_listing(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "a.jsonl").write_text('{"text": "a"}\n')
    (inside / "b.jsonl").symlink_to(outside / "a.jsonl")
    with pytest.raises(FormatError, match=rf"in/b\.jsonl: .*add --allow {outside}"):
        list(list_files([str(inside)], table_stem))
    assert len(list(list_files([str(inside)], table_stem, (str(outside),)))) == 1
    assert len(list(list_files([str(inside / "b.jsonl")], table_stem))) == 1
    (inside / "b.jsonl").unlink()
    (inside / "more").symlink_to(outside)
    with pytest.raises(FormatError, match=rf"in/more: .*add --allow {outside}"):
        list(walk(inside))
    assert [name for name, _ in walk(inside, (str(outside),))] == ["", "more"]


def test_a_meta_file_names_what_lies_below_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for folder in (inside, outside):
        (folder / "a.jsonl").write_text('{"messages": []}\n')
    for entry in (
        f'{{"file_name": "{outside}/a.jsonl"}}',
        '{"file_name": "../out/a.jsonl"}',
        '{"file_name": "a.jsonl", "media_dir": "/"}',
        '{"file_name": "a.jsonl", "media_dir": "../out"}',
    ):
        (inside / "meta.json").write_text(f'{{"x": {entry}}}')
        with pytest.raises(FormatError, match="add --allow"):
            list(NemoSource(meta=str(inside / "meta.json")).parts(None))
        allowed = NemoSource(meta=str(inside / "meta.json"), allow=("/",))
        assert len(list(allowed.parts(None))) == 1


def test_rows_carry_what_they_may_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"image": "a.png"}\n')
    source = TableSource(files=(str(tmp_path / "a.jsonl"),), allow=("/data",))
    with source.open() as read:
        (part,) = source.parts(None)
        (found,) = read(part.input)
    assert (found.media_dir, found.allow) == (str(tmp_path), ("/data",))
