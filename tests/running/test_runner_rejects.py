"""Rejects tried again: only what failed is fetched, and the bytes are those of a calm run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from drivers import snapshot
from make_media import image

from shardmill.running.runner import retry_rejects, run_stage
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.sources.download import Patience
from shardmill.sources.shapes.general import PairShape
from shardmill.sources.tables import TableSource
from shardmill.stages.ingest import Ingest

NUM_ROWS = 40


@dataclass
class Web:
    """A web server of images: what was asked for, and which numbers it refuses with 503."""

    url: str = ""
    asked: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


@contextmanager
def images() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.strip("/").partition(".")[0])
            web.asked.append(number)
            status = 404 if number == 7 else 503 if number in web.refused else 200
            body = image("JPEG", 40 + number, 30, number) if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask once only: what a server refuses here, it refuses for good."""
    quick = {**Patience.__init__.__kwdefaults__, "num_tries": 1}
    monkeypatch.setattr(Patience.__init__, "__kwdefaults__", quick)


def make_stage(tmp_path: Path, web: Web) -> Ingest:
    table = tmp_path / "rows.jsonl"
    rows = [{"image": f"{web.url}/{n}.jpg", "caption": f"number {n}"} for n in range(NUM_ROWS)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = TableSource(files=(str(table),), allow=(web.url,))
    return Ingest(source=source, shape=PairShape(), per_shard=10)


def test_only_what_failed_is_fetched_again(tmp_path: Path) -> None:
    with images() as web:
        stage = make_stage(tmp_path, web)
        run_stage(stage, tmp_path / "calm", workers=0, max_skip_rate=1.0)
        web.refused = {3, 12, 13, 35}
        out = tmp_path / "out"
        run_stage(stage, out, workers=0, max_skip_rate=1.0)
        assert open_manifest(out).skipped == {"http 404": 1, "http 503": 4}
        web.refused, web.asked = {35}, []
        assert retry_rejects(out, stage, ["http 5", "time-out"]) == 3
        assert open_manifest_is_gone(out)
        run_stage(stage, out, workers=0, max_skip_rate=1.0)
        # Unit 0 also had an image that does not exist, which is looked for once more.
        assert sorted(web.asked) == [3, 7, 12, 13, 35]
        assert open_manifest(out).skipped == {"http 404": 1, "http 503": 1}
        web.refused, web.asked = set(), []
        assert retry_rejects(out, stage, ["http 5"]) == 1
        run_stage(stage, out, workers=0, max_skip_rate=1.0)
        assert web.asked == [35]
        assert snapshot(out) == snapshot(tmp_path / "calm")
        assert retry_rejects(out, stage, ["http 5"]) == 0
        assert open_manifest(out).num_samples == NUM_ROWS - 1


def open_manifest_is_gone(out: Path) -> bool:
    return not (out / "manifest.json").exists()


def test_files_that_are_not_as_they_were_are_not_used(tmp_path: Path) -> None:
    with images() as web:
        stage, out = make_stage(tmp_path, web), tmp_path / "out"
        run_stage(stage, tmp_path / "calm", workers=0, max_skip_rate=1.0)
        web.refused = {3}
        run_stage(stage, out, workers=0, max_skip_rate=1.0)
        retry_rejects(out, stage, ["http 5"])
        tar = out / "shards" / "000000.tar"
        content = bytearray(tar.read_bytes())
        photo = image("JPEG", 40, 30, 0)
        content[content.index(photo) + len(photo) // 2] ^= 0xFF
        tar.write_bytes(content)
        web.refused, web.asked = set(), []
        run_stage(stage, out, workers=0, max_skip_rate=1.0)
        assert sorted(web.asked) == [0, 3, 7]
        assert snapshot(out) == snapshot(tmp_path / "calm")


def test_a_folder_that_was_not_begun_has_nothing_to_try_again(tmp_path: Path) -> None:
    with images() as web:
        stage = make_stage(tmp_path, web)
        assert retry_rejects(tmp_path / "out", stage, ["http 5"]) == 0
        assert Ledger(tmp_path / "out").read_stage() is None
