"""The table of what is fuzzed: every reader, decoder and gate that meets data of others.

A target writes whole input with our own writers, and reads it again after one of its files was
broken. Reading returns, or raises a `ShardmillError`; anything else is a finding. Libraries are
loaded by the functions, so that a child holds only what its target needs.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import socket
import tarfile
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from shardmill.errors import ShardmillError

DATA = Path(__file__).parents[2] / "demo" / "data"
MAX_ITEMS = 40


@dataclass(frozen=True, slots=True)
class Target:
    """`make` writes whole input below a folder; `read` reads it when the file `changed` is broken.

    `files` are the patterns of what may break.
    """

    says: str
    make: Callable[[Path], None]
    read: Callable[[Path, Path], None]
    files: tuple[str, ...] = ("**/*",)
    runs_c: bool = False


def attempt(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function that may refuse, so that what comes after it is tried too."""
    with suppress(ShardmillError):
        return function(*args, **named)


def some(items: Iterable[Any]) -> list[Any]:
    """Return the first items."""
    return list(islice(items, MAX_ITEMS))


# Tars, and the folders of our own stages.


def make_tars(folder: Path) -> None:
    from shardmill.shards.tar.index import IndexedTar
    from shardmill.shards.tar.write import lay_out_sample

    with closing(IndexedTar(folder / "ours.tar", folder / "ours.idx")) as tar:
        for number in range(4):
            members = {"json": b'{"text": "a"}', "0.jpg": bytes(100 * number), "txt": b"hello"}
            tar.append(lay_out_sample(f"deep/key-{number}", members.items()))
    for name, kind in (("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(folder / f"{name}.tar", "w", format=kind) as tar:
            for at, key in enumerate(["a", "b" * 120, "\u00e9"]):
                for ext in ("json", "jpg"):
                    info = tarfile.TarInfo(f"x/{key}.{ext}")
                    info.size, info.mtime = 20 * at, 1.5
                    tar.addfile(info, io.BytesIO(bytes(info.size)))
            link = tarfile.TarInfo("x/link.txt")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)


def read_tar(folder: Path, changed: Path) -> None:
    from shardmill.shards.samples import open_foreign, open_shard
    from shardmill.sources.allowed import Allowed
    from shardmill.sources.fetch import TarMembers
    from shardmill.sources.tars import TarSource

    if changed.suffix == ".tar":
        attempt(walk_both_ways, changed)
        with suppress(ShardmillError):
            shard, grouped = open_foreign(str(changed))
            with shard:
                some(grouped.bad)
                for number in range(min(len(shard), MAX_ITEMS)):
                    attempt(shard.raw, number)
                    attempt(shard.copies, number)
        attempt(read_source, TarSource(tars=(str(changed),)))
        with closing(TarMembers()) as members:
            allowed = Allowed.below(str(folder))
            attempt(members.read, str(changed), "x/a.json", allowed, 1 << 20)
    with (
        suppress(ShardmillError),
        open_shard(str(folder / "ours.tar"), folder / "ours.idx") as shard,
    ):
        for number in range(min(len(shard), MAX_ITEMS)):
            attempt(shard.raw, number)
            attempt(shard.copies, number)
            attempt(shard.__getitem__, number)
        attempt(shard.find, "deep/key-2")
        some(attempt(shard.iter_raw) or ())


def read_scan(folder: Path, changed: Path) -> None:
    """Run only what is C code of ours, so that sanitizers see many inputs."""
    from shardmill.shards.samples import open_shard

    if changed.suffix == ".tar":
        walk_both_ways(changed)
    with open_shard(str(folder / "ours.tar"), folder / "ours.idx") as shard:
        for number in range(min(len(shard), MAX_ITEMS)):
            attempt(shard.raw, number)
            attempt(shard.copies, number)


def walk_both_ways(path: Path) -> None:
    """Walk a tar by the compiled scanner and by the one in Python, which must agree."""
    from shardmill.shards.tar import read
    from shardmill.storage.blob import LocalBlob

    compiled, walks = read._tarscan, []
    for scanner in (compiled, None):
        read._tarscan = scanner
        try:
            with closing(LocalBlob(str(path))) as blob:
                walks.append(read.walk_tar(blob))
        except ShardmillError as error:
            walks.append(str(error))
        finally:
            read._tarscan = compiled
    if walks[0] != walks[1]:
        raise RuntimeError(f"the scanners differ: {walks[0]!r:.200} and {walks[1]!r:.200}")


def read_source(source: Any) -> None:
    """List the parts of a source and read each."""
    parts = some(source.parts(7))
    with source.open() as read:
        for part in parts:
            with suppress(ShardmillError):
                some(read(part.input))


def make_mixed_part(folder: Path, names: tuple[str, ...]) -> None:
    """Write some folders of a small data set with text, images, codes and video."""
    from mixed_folder import make_mixed

    make_mixed(folder, 8)
    for path in folder.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_folder(name: str, folder: Path, changed: Path) -> None:
    """Read a folder by all its front doors."""
    import shardmill as sm
    from shardmill.running.status import read_status
    from shardmill.stages.check.content import check_content

    place = folder / name
    with suppress(ShardmillError):
        data = sm.open(place)
        for what in (repr, data._repr_html_.__func__, len):  # type: ignore[attr-defined]
            attempt(what, data)
        attempt(lambda: (data.counts, data.skipped, data.complete))
        attempt(lambda: some(data.rejects()))
        attempt(lambda: some(data.keys()))
        attempt(data.find, "mixed-00000001")
        for number in range(min(attempt(len, data) or 0, MAX_ITEMS)):
            attempt(data.__getitem__, number)
    if place.is_dir():
        attempt(read_status, place)
        attempt(sm.check, place, workers=0)
        attempt(check_content, place, workers=0)


def read_tokens(folder: Path, changed: Path) -> None:
    import shardmill as sm
    from shardmill.model.plan import PackSpec
    from shardmill.packing.plan import plan_packs
    from shardmill.shards.tokens.shard import token_lengths

    read_folder("tokens", folder, changed)
    with suppress(ShardmillError):
        table = token_lengths(folder / "tokens")
        plan_packs(table, PackSpec(capacity=3000, overlong="drop"), loops="plain")
    with suppress(ShardmillError):
        rows = sm.RowDataset(folder / "tokens")
        for number in range(min(len(rows), MAX_ITEMS)):
            attempt(rows.__getitem__, number)


def trust_checksums() -> None:
    """Let plans and tables pass whose checksum somebody made right, so that what follows is met."""
    from shardmill.shards import plans

    plans._compare = lambda *_: None  # type: ignore[assignment]


def read_plan(folder: Path, changed: Path) -> None:
    import shardmill as sm

    trust_checksums()
    with suppress(ShardmillError):
        plan = sm.open(folder / "plan")
        attempt(repr, plan)
        attempt(lambda: (plan.spec, plan.counts, plan.skipped))
        attempt(lambda: some(plan.rejects()))
        attempt(plan.order, seed=1)  # type: ignore[attr-defined]
        for number in range(min(attempt(len, plan) or 0, MAX_ITEMS)):
            attempt(plan.__getitem__, number)
    with suppress(ShardmillError):
        packs = sm.PackedDataset(folder / "plan", folder / "tokens")
        for number in range(min(len(packs), MAX_ITEMS)):
            attempt(packs.__getitem__, number)


def make_lengths(folder: Path) -> None:
    import shardmill as sm

    make_mixed_part(folder, ("pairs",))
    sm.measure(folder / "pairs", folder / "lengths", model="qwen2.5-vl", estimate=True, workers=0)


def read_lengths(folder: Path, changed: Path) -> None:
    import shardmill as sm
    from shardmill.model.plan import PackSpec
    from shardmill.packing.plan import plan_packs
    from shardmill.shards.plans import TABLE_NAME, open_lengths

    trust_checksums()
    read_folder("lengths", folder, changed)
    table = open_lengths(folder / "lengths" / TABLE_NAME)
    attempt(sm.open, folder / "lengths" / TABLE_NAME)
    plan_packs(table, PackSpec(capacity=3000, overlong="drop"), loops="plain")


def make_ledger(folder: Path) -> None:
    """Write a folder with receipts, rejects, failures and events."""
    import json

    import shardmill as sm
    from shardmill.running.lock import owner_page, this_process

    (folder / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{]\n' * 3)
    sm.ingest(folder / "rows.jsonl", folder / "out", per_shard=3, max_skip_rate=1.0, workers=0)
    failure = {"unit": "x", "message": "m", "traceback": "t"}
    (folder / "out/failures").mkdir(exist_ok=True)
    (folder / "out/failures/x.json").write_text(json.dumps(failure))
    owner = this_process("0123456789abcdef")
    (folder / "out/locks/part-1-of-1.json").write_bytes(owner_page(owner))
    (folder / "out/claims").mkdir()
    (folder / "out/claims/000000.1").write_text("0123456789abcdef")
    (folder / "out/earlier").mkdir(exist_ok=True)
    for receipt in (folder / "out/receipts").iterdir():
        shutil.copy(receipt, folder / "out/earlier")


def read_ledger(folder: Path, changed: Path) -> None:
    from shardmill.stages.check.folder import check_folder

    read_folder("out", folder, changed)
    attempt(check_folder, folder / "out")
    (folder / "out/manifest.json").unlink(missing_ok=True)
    read_folder("out", folder, changed)


# Exports and the tokens of other programs.

EXPORTS: dict[str, dict[str, Any]] = {
    "megatron": {"kind": "megatron", "prefix": "all"},
    "hf": {"kind": "hf"},
    "hf-parquet": {"kind": "hf", "files": "parquet"},
    "tensordict": {"kind": "tensordict", "length": 3100, "pad_id": 0},
    "webdataset": {"kind": "webdataset", "samples": "samples"},
    "energon": {"kind": "energon", "samples": "samples"},
    "mds": {"kind": "mds"},
    "litdata": {"kind": "litdata"},
}


def make_export(name: str, folder: Path) -> None:
    from lossy_export import lossy_export
    from mixed_folder import make_mixed

    from shardmill.model.codec import build
    from shardmill.plugins import FORMATS
    from shardmill.running.runner import run_stage

    made = make_mixed(folder, 8)
    plain = dict(EXPORTS[name])
    if "samples" in plain:
        plain["samples"] = str(made.samples)
    stage = lossy_export(input_dir=made.tokens, format=build(FORMATS, plain))
    assert run_stage(stage, folder / "out", workers=0).complete
    for path in folder.iterdir():
        if path.name not in ("out", "tokens"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_export(folder: Path, changed: Path) -> None:
    from shardmill.formats.finder import open_reader

    read_folder("out", folder, changed)
    with suppress(ShardmillError):
        reader = open_reader(str(folder / "out"))
        attempt(reader.token_space)
        for part in some(reader.parts()):
            with suppress(ShardmillError):
                for record in islice(reader.read(part.input), MAX_ITEMS):
                    attempt(record.ids)
                    attempt(record.loss_mask)


def make_foreign(folder: Path) -> None:
    """Write Megatron files and packed tars as another program would: without a manifest."""
    made = folder.with_name("made")
    for name, files in (("megatron", ("*.bin", "*.idx")), ("webdataset", ("**/*.tar",))):
        make_export(name, made / name)
        for pattern in files:
            for path in (made / name / "out").glob(pattern):
                shutil.copy(path, folder / path.name)
    shutil.rmtree(made)


def read_foreign(folder: Path, changed: Path) -> None:
    import shardmill as sm
    from shardmill.formats.finder import open_reader

    for place in (changed, changed.with_suffix("")):
        with suppress(ShardmillError):
            reader = open_reader(str(place))
            for part in some(reader.parts()):
                with suppress(ShardmillError):
                    some(reader.read(part.input))
        attempt(sm.open, place)


# Tables, values and rows.

ROWS: tuple[dict[str, Any], ...] = tuple(
    {"id": n, "image": f"{n}.jpg", "text": f"row {n}", "tags": ["a", "b"], "score": 0.5}
    for n in range(9)
)


def make_text_tables(folder: Path) -> None:
    import csv
    import gzip
    import json

    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (folder / "rows.jsonl").write_bytes(lines)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "rows.txt").write_bytes(b"a line\n\nanother\n" * 4)
    (folder / "array.json").write_text(json.dumps(ROWS, indent=1))
    (folder / "columns.json").write_text(json.dumps({k: [r[k] for r in ROWS] for k in ROWS[0]}))
    for name, mark in (("rows.csv", ","), ("rows.tsv", "\t")):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]), delimiter=mark)
            writer.writeheader()
            writer.writerows(ROWS)


def read_table(folder: Path, changed: Path) -> None:
    from shardmill.sources.tables import ColumnsSource, NestedSource, TableSource

    files = (str(changed),)
    attempt(read_source, TableSource(files=files))
    if changed.suffix == ".json":
        attempt(read_source, ColumnsSource(files=files))
        attempt(read_source, NestedSource(files=files, each="tags"))


def make_columnar(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([{**row, "bytes": bytes(40)} for row in ROWS])
    pq.write_table(table, folder / "rows.parquet", row_group_size=4)
    with (
        pa.OSFile(str(folder / "file.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as out,
    ):
        out.write_table(table, 4)
    with (
        pa.OSFile(str(folder / "stream.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, 4)


def make_lmdb(folder: Path) -> None:
    import lmdb

    place = str(folder / "media.lmdb")
    with lmdb.open(place, subdir=False, map_size=1 << 20, lock=False) as values:
        transaction = values.begin(write=True)
        for number in range(40):
            transaction.put(f"{number}.jpg".encode(), bytes([number]) * 700)
        transaction.commit()
    os.truncate(folder / "media.lmdb", 1 << 20)


def read_lmdb(folder: Path, changed: Path) -> None:
    from shardmill.sources.allowed import Allowed
    from shardmill.sources.fetch import LmdbValues

    with closing(LmdbValues()) as values:
        for number in (0, 17, 39, 99):
            attempt(values.read, str(changed), f"{number}.jpg", Allowed.below(str(folder)))


def make_rows(folder: Path) -> None:
    """Write the rows of the demo, one file a row, with its photos beside them."""
    import json

    shutil.copytree(DATA / "photos", folder / "photos")
    texts = {
        name: (DATA / name).read_text() for name in ("pairs.jsonl", "pages.jsonl", "texts.jsonl")
    }
    rows = [json.loads(line) for text in texts.values() for line in text.splitlines()[:3]]
    rows += json.loads((DATA / "chats.json").read_text())[:3]
    for number, row in enumerate(rows):
        (folder / f"row-{number:02d}.json").write_text(json.dumps([row]))


def read_rows(folder: Path, changed: Path) -> None:
    """Ingest a row: it is kept or rejected; a unit that fails for another reason is a fault."""
    import json

    import shardmill as sm
    from shardmill.api.running import RunFailed

    try:
        sm.ingest(changed, folder / "out", workers=0, retries=0, max_skip_rate=1.0)
    except RunFailed as error:
        for path in (folder / "out/failures").glob("*.json"):
            told = json.loads(path.read_text())
            last = str(told.get("traceback", "")).strip().splitlines()[-1:]
            if not last or not last[0].startswith("shardmill."):
                raise RuntimeError(f"a row stopped its unit: {last}") from error


# Media.


def make_images(folder: Path) -> None:
    from make_media import IMAGE_FORMATS, encode, pixels

    for kind, ext in IMAGE_FORMATS.items():
        (folder / f"plain.{ext}").write_bytes(encode(kind, pixels(40, 30)))
    rgba = pixels(24, 16)[..., [0, 1, 2, 0]].copy()
    (folder / "alpha.png").write_bytes(encode("PNG", rgba))
    (folder / "grey.tif").write_bytes(encode("TIFF", pixels(24, 16)[..., 0].copy()))
    (folder / "steps.jpg").write_bytes(encode("JPEG", pixels(64, 48), progressive=True))
    (folder / "packed.tif").write_bytes(encode("TIFF", pixels(24, 16), compression="tiff_lzw"))


def read_image(folder: Path, changed: Path) -> None:
    from shardmill.media.geometry import Square
    from shardmill.media.header import probe
    from shardmill.media.image import Decoding, decode_image, resize_crop

    content = changed.read_bytes()
    for kind in ("image", "video", "audio"):
        attempt(probe, kind, content)
    fit = Square(max_aspect=None, resolution=16, resample="bicubic", halve=True).fit
    for decoding in (Decoding(), Decoding(alpha="drop", depth="clip", orientation="ignore")):
        for allow in (False, True):
            pixels = attempt(decode_image, content, decoding=decoding, allow_truncated=allow)
            if pixels is not None:
                attempt(resize_crop, pixels, fit(pixels.shape[1], pixels.shape[0]))


def make_videos(folder: Path) -> None:
    from make_media import clip

    for name, codec in (
        ("a.mp4", "libx264"),
        ("b.webm", "libvpx"),
        ("c.avi", "mpeg4"),
        ("d.mkv", "libx264"),
    ):
        clip(folder / name, codec=codec, num_frames=8)
    clip(folder / "e.mp4", codec="libx264", num_frames=8, movflags="frag_keyframe+empty_moov")
    clip(folder / "f.ts", codec="mpeg2video", num_frames=8)


def read_video_header(folder: Path, changed: Path) -> None:
    from shardmill.media.header import probe

    for kind in ("video", "audio", "image"):
        attempt(probe, kind, changed.read_bytes())


def read_video(folder: Path, changed: Path) -> None:
    from shardmill.media.frames import read_frames
    from shardmill.media.samplers import Keyframes, Scenes, Uniform

    content = changed.read_bytes()
    for sampler in (Uniform(count=3), Keyframes(), Scenes()):
        attempt(read_frames, content, sampler)


# Gates.

REFERENCES = (
    "photos/a.jpg",
    "../x.jpg",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://example.invalid/a.jpg?k=1",
    "http://[::1]/x",
    "http://0x7f000001/",
    "https://user:secret@h\u00f6st.invalid/a b.jpg",
    "s3://bucket/a",
    "s3:///x",
    "gs://b/../c",
    "a.tar::x/a.jpg",
    "m.lmdb::k",
    "data:image/png;base64,aGk=",
    "pipe:cat x",
    "az://container/k",
    "abfss://c@account.dfs.core.windows.net/k",
    "/9j/" + "A" * 80,
    "http://h:99999/x",
)


def make_references(folder: Path) -> None:
    for number, text in enumerate(REFERENCES):
        (folder / f"{number:02d}.txt").write_text(text)


def read_reference(folder: Path, changed: Path) -> None:
    """Take a reference through everything that looks at it before anything is asked for."""
    from shardmill.shards.tar.header import check_key
    from shardmill.sources import download, fetch
    from shardmill.sources.source import Row, key_from_value, name_from_path
    from shardmill.storage import path as paths

    text = changed.read_bytes().decode("utf-8", "surrogateescape")
    socket.getaddrinfo = socket.socket.connect = _no_network  # type: ignore[assignment,method-assign]
    row = Row(key="k", origin=None, media_dir=str(folder))  # type: ignore[arg-type]
    patience = download.Patience(num_tries=1)
    with closing(fetch.Fetcher(patience=patience)) as fetcher:
        # Clients of stores, which containers at urls are read by, ask the network on their own.
        if not text.startswith(("s3:", "gs:", "az:", "abfs")) and not (
            text.startswith("http") and "::" in text
        ):
            attempt(fetcher.announce, text, row)
            attempt(fetcher.fetch, text, row)
            attempt(fetcher.fetch, {"path": text}, row)
    of_paths = (paths.is_remote, paths.split_url, paths.plain_url, paths.check_name, paths.as_path)
    for gate in (fetch.describe, *of_paths, key_from_value, check_key):
        attempt(gate, text)
    check_key(f"{name_from_path(text)}-0") if name_from_path(text) else None


def _no_network(*_: Any, **__: Any) -> Any:
    raise OSError("no network here")


QUERIES = (
    "/",
    "/static/main.js",
    "/api/map",
    "/api/item?id=tokens",
    "/api/units?id=pairs&at=0&count=3",
    "/api/unit?id=pairs&name=000000",
    "/api/plots?id=plan&world=2",
    "/api/plots?id=tokens",
    "/api/rejects?id=pairs&file=0&line=0&q=a&reason=b",
    "/api/samples?id=samples&at=3&count=4&q=text&source=source1",
    "/api/sample?id=samples&n=1",
    "/api/search?q=mixed&item=0&shard=0",
    "/api/rows?id=tokens&at=1&count=3",
    "/api/row?id=tokens&n=1",
    "/api/packs?id=plan&at=0",
    "/api/pack?id=plan&n=0",
    "/api/codes?id=codes&at=1&count=4",
    "/media?id=samples&n=1&name=jpg",
    "/media?id=samples&n=1&name=jpg&w=64",
    "/media?id=samples&n=3&name=mp4&ms=40",
    "/decoded?id=codes&key=mixed-00000001&medium=jpg",
)


def make_queries(folder: Path) -> None:
    make_mixed_part(folder, ("pairs", "samples", "tokens", "plan", "codes"))
    (folder / "queries").mkdir()
    for number, text in enumerate(QUERIES):
        (folder / f"queries/{number:02d}.txt").write_text(text)


def read_query(folder: Path, changed: Path) -> None:
    """Ask the server as the network would: bytes of a path and of a query string."""
    ask_page(folder, [changed.read_bytes().replace(b"\n", b"")])


def read_page(folder: Path, changed: Path) -> None:
    """Ask for everything in a folder that is broken."""
    ask_page(folder, [text.encode() for text in QUERIES])


def ask_page(folder: Path, queries: list[bytes]) -> None:
    from shardmill.view.context import Context
    from shardmill.view.server import make_app

    context = Context(folder)
    app = make_app(context, "token", 1)

    async def ask(raw: bytes) -> None:
        path, _, query = raw.partition(b"?")
        headers = [(b"host", b"localhost"), (b"cookie", b"shardmill-1=token"), (b"range", raw[:40])]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path.decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            pass

        await app(scope, receive, send)

    async def ask_all() -> None:
        for raw in queries:
            await ask(raw)

    asyncio.run(ask_all())


# Weights and tokenizers.


def make_weights(folder: Path) -> None:
    from safetensors.torch import save_file
    from vq_checkpoints import SMALL, random_tensors, write_original

    write_original(folder / "original")
    (folder / "safe").mkdir()
    save_file(random_tensors(SMALL), folder / "safe/model.safetensors")


def read_weights(folder: Path, changed: Path) -> None:
    from shardmill.tokens.vq.weights import load_weights

    attempt(load_weights, changed.parent)


def _folder(name: str, says: str, *, runs_c: bool = False) -> Target:
    """A folder of the small data set, which needs none of the others."""
    make = partial(make_mixed_part, names=(name,))
    return Target(says, make, partial(read_folder, name), (f"{name}/**/*",), runs_c)


def _export(name: str) -> Target:
    return Target(f"an export to {name}", partial(make_export, name), read_export, ("out/**/*",))


LEDGER = tuple(f"out/{name}" for name in ("*.json*", *(f"{d}/*" for d in ("receipts", "rejects"))))
LEFT = ("failures", "events", "locks", "claims", "earlier")
PAGE = ("samples/**/*", "tokens/**/*", "codes/**/*", "plan")
TARGETS: dict[str, Target] = {
    "tar": Target("tars of ours and of others, and their index", make_tars, read_tar, runs_c=True),
    "scan": Target("the walk and the members of tars alone", make_tars, read_scan, runs_c=True),
    "samples": _folder("samples", "a folder of samples", runs_c=True),
    "codes": _folder("codes", "a folder of codes"),
    "tokens": Target(
        "token shards: bin, idx and spans",
        partial(make_mixed_part, names=("tokens",)),
        read_tokens,
    ),
    "packs": _folder("packs", "packs on disk"),
    "plan": Target(
        "a plan, alone and over tokens",
        partial(make_mixed_part, names=("plan", "tokens")),
        read_plan,
        ("plan",),
    ),
    "lengths": Target("a table of lengths", make_lengths, read_lengths, ("lengths/**/*",)),
    "ledger": Target(
        "manifest, stage, units, receipts, rejects, failures, events",
        make_ledger,
        read_ledger,
        (*LEDGER, *(f"out/{name}/*" for name in LEFT)),
    ),
    **{name: _export(name) for name in EXPORTS},
    "foreign": Target("Megatron files and packed tars of others", make_foreign, read_foreign),
    "text": Target("jsonl, json, csv, tsv and text tables", make_text_tables, read_table),
    "columnar": Target("parquet and Arrow tables", make_columnar, read_table),
    "lmdb": Target("LMDB databases", make_lmdb, read_lmdb),
    "rows": Target("rows of all shapes, ingested", make_rows, read_rows, ("row-*.json",)),
    "images": Target("headers and pixels of images", make_images, read_image),
    "video-headers": Target("headers of videos", make_videos, read_video_header),
    "videos": Target("frames of videos", make_videos, read_video),
    "references": Target("the gates of paths and urls", make_references, read_reference),
    "queries": Target("the page's requests", make_queries, read_query, ("queries/*",)),
    "page": Target("the page over broken folders", make_queries, read_page, PAGE),
    "weights": Target("VQ weights", make_weights, read_weights),
}
