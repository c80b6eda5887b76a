"""A project is known by what it holds: not by where it is, how that was typed, or its times.

A small one with every stage is built, then built again elsewhere with other spellings, moved,
copied without its times, cut in half and copied, opened from other folders, and put into a store.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from drivers import snapshot
from invoked import invoke
from make_media import image
from numbered_video import numbered_clip
from tars import tar_bytes
from vq_checkpoints import write_original

import shardmill as sm
from shardmill.errors import ShardmillError, StaleError
from shardmill.model.codec import to_plain
from shardmill.running.engine import Job
from shardmill.running.events import Event
from shardmill.running.plan import store_plan
from shardmill.running.runner import run_stage
from shardmill.running.worker import work_job
from shardmill.shards.ledger import Ledger
from shardmill.shards.samples import open_samples
from shardmill.sources.shapes.general import PairShape
from shardmill.sources.source import Read, SourcePart
from shardmill.sources.tars import TarSource
from shardmill.stages.ingest import Ingest
from shardmill.storage import objects

# What may hold facts of one place: the fingerprint of the input, and lists for other readers.
LOCAL = ("inputs.json", "shardlist.json", "shardlist.pkl", "shardindex.json")
Spell = Callable[[str], Any]


def tar_of(name: str) -> bytes:
    """Return a tar of two samples whose keys begin with a name."""
    contents = [("jpg", image(seed=0)), ("txt", b"said")]
    return tar_bytes([(f"{name}{i}.{ext}", c) for i in range(2) for ext, c in contents])


def make_raw(root: Path) -> None:
    """Write what a user has: tables, photos, tars, a video, weights, a list of keys."""
    raw = root / "raw"
    (raw / "photos").mkdir(parents=True)
    (raw / "pairs").mkdir()
    for n in range(6):
        (raw / "photos" / f"{n}.jpg").write_bytes(image(width=32, height=32, seed=n))
        (raw / "pairs" / f"{n}.jpg").write_bytes(image(width=40, height=32, seed=n))
        (raw / "pairs" / f"{n}.txt").write_text(f"caption {n}")
    names = [*(f"{n}.jpg" for n in range(6)), "gone.jpg", "../../secret.jpg"]
    rows = [{"image": name, "caption": f"a photo of {name[0]}"} for name in names]
    (raw / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (raw / "texts.jsonl").write_text('{"text": "one two three"}\n' * 5)
    (raw / "clips.jsonl").write_text('{"video": "clip.mp4", "caption": "numbers"}\n')
    (raw / "clip.mp4").write_bytes(numbered_clip(8))
    for n in range(2):
        (raw / f"{n}.tar").write_bytes(tar_of(str(n)))
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    content = BytesIO()
    parquet.write_table(pa.Table.from_pylist([{"text": f"row {n}"} for n in range(5)]), content)
    (raw / "rows.parquet").write_bytes(content.getvalue())
    (raw / "keys.txt").write_text("rows-00000001\n")
    write_original(root / "vqgan")


# What makes each output: a verb, its places ("@") and its options.
STEPS: dict[str, tuple[Callable[..., Any], Any, dict[str, Any]]] = {
    "shards": (sm.ingest, ["@raw/rows.jsonl"], {"media_root": "@raw/photos", "per_shard": 2}),
    "pairs": (sm.ingest, ["@raw/pairs"], {"per_shard": 2}),
    "tarred": (sm.ingest, [["@raw/0.tar", "@raw/1.tar"]], {}),
    "columns": (sm.ingest, ["@raw/rows.parquet"], {"per_shard": 2}),
    "clips": (sm.ingest, ["@raw/clips.jsonl"], {}),
    "index": (sm.index, ["@raw/*.tar"], {}),
    "small": (sm.filter, ["@shards"], {"drop_duplicates": True}),
    "frames": (sm.frames, ["@clips"], {"sampler": "uniform,count=2"}),
    "codes": (
        sm.codes,
        ["@shards"],
        {"tokenizer": "chameleon", "weights": "@vqgan", "resolution": 32},
    ),
    "tokens": (
        sm.tokenize,
        ["@shards"],
        {
            "template": "t2i",
            "codes": "@codes",
            "space": {"num_codes": 300, "added": ["boi", "eoi"]},
        },
    ),
    "texts": (sm.tokenize, ["@raw/texts.jsonl"], {}),
    "cut": (sm.tokenize, ["@raw/texts.jsonl"], {"per_shard": 2}),
    "lengths": (sm.measure, ["@shards"], {"model": "llava", "estimate": True}),
    "packs.plan": (sm.plan, ["@tokens"], {"capacity": 256}),
    "packs": (sm.pack, ["@tokens", "@packs.plan"], {"packs_per_shard": 1}),
    "packed": (sm.pack, ["@tokens", "@packs.plan"], {"format": "tar", "samples": "@shards"}),
    "megatron": (sm.export, ["@texts"], {"format": "megatron"}),
    "energon": (sm.export, ["@shards"], {"format": "energon"}),
    "adopted": (sm.tokenize, ["@megatron/shards"], {"tokenizer": "bundled"}),
    "removed": (sm.remove, ["@shards"], {"keys": "@raw/keys.txt"}),
}


def make(name: str, at: Spell, **more: Any) -> Any:
    """Make one output of the project, or find that it is made; `at` spells a place."""
    verb, inputs, options = STEPS[name]

    def spelled(value: Any) -> Any:
        if isinstance(value, list):
            return [spelled(one) for one in value]
        return at(value[1:]) if isinstance(value, str) and value[:1] == "@" else value

    run = {} if verb is sm.plan else {"workers": 0, "max_skip_rate": 1.0}
    named = {option: spelled(value) for option, value in {**options, **more}.items()}
    return verb(*map(spelled, inputs), at(name), **run, **named)


def below(root: Path) -> Spell:
    return lambda name: root / name


def build(at: Spell) -> None:
    for name in STEPS:
        make(name, at)


def files_of(root: Path) -> dict[str, bytes]:
    """Return all that must not depend on the place."""
    return {
        f"{out.name}/{name}": content
        for out in sorted(root.iterdir())
        if out.name not in ("raw", "vqgan") and out.is_dir()
        for name, content in snapshot(out).items()
        if name not in LOCAL
    } | {"packs.plan": (root / "packs.plan").read_bytes()}


def check_project(at: Spell) -> None:
    """Nothing is left to do, all is sound, and what readers follow is found."""
    for name in STEPS:
        made = make(name, at)
        assert name == "packs.plan" or made.report.num_done == 0, name
    for name in ("shards", "index", "tokens", "packs", "megatron"):
        assert sm.check(at(name)).sound, name
    tokens, plan = at("tokens"), at("packs.plan")
    assert len(list(sm.loader(plan, tokens, workers=0, collate="torch"))) == len(sm.open(plan))
    assert "a photo of" in invoke("show", at("packs")).output
    assert "rows.jsonl" in invoke("why", plan, "--data", tokens, "--step", "0").output
    assert open_samples(sm.open(at("index")).path).raw(0)["txt"] == b"said"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished project; tests copy it."""
    root = tmp_path_factory.mktemp("first") / "project"
    make_raw(root)
    build(below(root))
    return root


@pytest.fixture
def project(first: Path, tmp_path: Path) -> Path:
    """Return a copy with its times."""
    return Path(shutil.copytree(first, tmp_path / "project"))


def test_a_project_built_elsewhere_with_other_spellings_has_the_same_bytes(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "a" / "deeper" / "place"
    make_raw(deep)
    (tmp_path / "link").symlink_to(deep.parent)
    monkeypatch.setenv("HOME", str(deep))
    spellings: list[Spell] = [
        lambda name: name,
        lambda name: f"./{name}",
        lambda name: f"~/{name}",
        lambda name: f"{tmp_path}/link/place/{name}",
        lambda name: f"../place/{name}",
        lambda name: f"{deep}//{name}" + ("/" if "." not in name else ""),
    ]
    with chdir(deep):
        for number, name in enumerate(STEPS):
            make(name, spellings[number % len(spellings)])
    ours, theirs = files_of(first), files_of(deep)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    for number, spell in enumerate(spellings):
        with chdir(deep if number < 3 or number == 4 else tmp_path):
            check_project(spell)
    assert files_of(deep) == theirs


def test_no_place_of_this_machine_is_stored(first: Path) -> None:
    found = [name for name, content in files_of(first).items() if str(first).encode() in content]
    assert found == []


def test_a_moved_project_is_complete(project: Path, tmp_path: Path) -> None:
    before = files_of(project)
    there = tmp_path / "far" / "away" / "renamed"
    there.parent.mkdir(parents=True)
    project.rename(there)
    check_project(below(there))
    assert files_of(there) == before
    # Which other readers take as they are; wids finds tars from its index.
    tars = {"shardlist.json": f"{there}/raw/0.tar", "shardindex.json": "../raw/0.tar"}
    for name, tar in tars.items():
        content = (there / "index" / name).read_text()
        assert f'"{tar}"' in content and str(tmp_path / "project") not in content


def test_a_copy_without_times_is_complete(first: Path, tmp_path: Path) -> None:
    there = tmp_path / "x" / "copy"
    shutil.copytree(first, there, copy_function=shutil.copyfile)
    check_project(below(there))
    assert files_of(there) == files_of(first)
    with chdir(there):
        check_project(str)
    with chdir(tmp_path):
        check_project(lambda name: f"x/copy/{name}")


def test_half_a_project_is_resumed_where_it_was_copied(first: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(first, tmp_path / "half"))
    halved = {}
    for name in STEPS:
        out = half / name
        if not out.is_dir():
            continue
        units = Ledger(out).read_units()
        Ledger(out).forget([unit.name for unit in units[1::2]])
        for extra in ("removal.json", "meta.json"):
            (out / extra).unlink(missing_ok=True)
        halved[name] = len(units[1::2])
    there = tmp_path / "y" / "copy"
    shutil.copytree(half, there, copy_function=shutil.copyfile)
    shutil.rmtree(half)
    for name in STEPS:
        made = make(name, below(there))
        assert name not in halved or made.report.num_done == halved[name], name
    assert files_of(there) == files_of(first)
    check_project(below(there))


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "file", "edit"),
    [
        ("shards", "raw/rows.jsonl", swap(b"a photo of 1", b"a photo of 9")),
        ("pairs", "raw/pairs/1.txt", swap(b"caption 1", b"caption 9")),
        ("tarred", "raw/0.tar", swap(b"said", b"told")),
        ("columns", "raw/rows.parquet", swap(b"row 0", b"row 9")),
        ("index", "raw/0.tar", lambda _: tar_of("x")),
        ("texts", "raw/texts.jsonl", swap(b"one", b"two")),
        ("cut", "raw/texts.jsonl", swap(b"one", b"two")),
        ("adopted", "megatron/shards/00000.bin", lambda content: content[::-1]),
    ],
)
def test_an_edit_of_the_same_size_is_found_in_a_copy_too(
    first: Path, tmp_path: Path, name: str, file: str, edit: Callable[[bytes], bytes]
) -> None:
    there = Path(shutil.copytree(first, tmp_path / "copy", copy_function=shutil.copyfile))
    content = (there / file).read_bytes()
    (there / file).write_bytes(edit(content))
    assert len(edit(content)) == len(content) and edit(content) != content
    named = Path(file).parent if name == "pairs" else file
    with pytest.raises(StaleError, match=f"changed: .*{named}"):
        make(name, below(there))


def test_other_content_in_another_place_is_refused_and_both_are_named(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "another"}\n')
    with pytest.raises(StaleError, match=r"removed: .*raw/texts\.jsonl\n.*added: .*other\.jsonl"):
        sm.tokenize(other, project / "texts", workers=0)
    with pytest.raises(StaleError, match=r"removed: .*shards/man.*\n.*added: .*pairs/man"):
        sm.filter(project / "pairs", project / "small", drop_duplicates=True, workers=0)


def test_the_same_content_in_another_place_is_the_same_input(project: Path, tmp_path: Path) -> None:
    raw = tmp_path / "elsewhere" / "raw"
    raw.parent.mkdir()
    (project / "raw").rename(raw)
    before = files_of(project)["texts/receipts/000000.json"]
    made = sm.tokenize(raw / "texts.jsonl", project / "texts", workers=0)
    assert made.report.num_done == 0
    assert made.manifest.reads == {"raw": (str(raw / "texts.jsonl"),)}
    assert files_of(project)["texts/receipts/000000.json"] == before
    assert sm.check(project / "texts").sound
    # What was made from what was made from it is as fresh as before.
    moved = lambda name: tmp_path / "elsewhere" / name if name[:3] == "raw" else project / name  # noqa: E731
    assert make("shards", moved).report.num_done == 0
    assert make("small", moved).report.num_done == 0


def test_another_media_root_is_another_setting(project: Path) -> None:
    with pytest.raises(StaleError, match=r"source\.media_root: .*raw/photos -> .*raw/pairs"):
        make("shards", below(project), media_root="@raw/pairs")


def upload(root: Path, url: str) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_file() and ".draft" not in path.parts:
            objects.put_file(f"{url}/{path.relative_to(root)}", path)


def test_a_project_in_a_store_is_complete(first: Path, store_url: str, tmp_path: Path) -> None:
    here = Path(shutil.copytree(first, tmp_path / "here"))
    out = here / "small"
    Ledger(out).forget([unit.name for unit in Ledger(out).read_units()[1:]])
    upload(here, store_url)
    there = lambda name: f"{store_url}/{name}"  # noqa: E731
    assert make("small", there).report.num_done == 2
    ours = files_of(first)
    for name in ("small", "tokens", "packs", "lengths"):
        assert make(name, there).report.num_done == 0, name
        stored = objects.list_all(f"{store_url}/{name}")
        theirs = {i.path: objects.get(f"{store_url}/{name}/{i.path}") for i in stored}
        local = {n.partition("/")[2]: c for n, c in ours.items() if n.startswith(f"{name}/")}
        assert {path: theirs[path] for path in local} == local
    assert sm.check(f"{store_url}/tokens").sound
    assert sm.open(f"{store_url}/packs").manifest.reads["tokens"] == (f"{store_url}/tokens",)


def test_what_is_missing_is_named_and_taken_by_argument(project: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    shutil.copytree(project / "packs", apart / "packs")
    shutil.copy(project / "packs.plan", apart / "packs.plan")
    assert sm.check(apart / "packs").sound
    with pytest.raises(ShardmillError, match="tokens"):
        list(sm.loader(apart / "packs.plan", apart / "tokens", workers=0, collate="torch"))
    assert (
        len(list(sm.loader(apart / "packs.plan", project / "tokens", workers=0, collate="torch")))
        > 0
    )
    made = sm.pack(
        project / "tokens", apart / "packs.plan", apart / "packs", packs_per_shard=1, workers=0
    )
    assert made.report.num_done == 0


def test_a_file_that_changes_after_it_was_listed_fails_its_units(tmp_path: Path) -> None:
    make_raw(tmp_path)
    stage = Ingest(source=TarSource(tars=(f"{tmp_path}/raw/*.tar",)), shape=PairShape())
    ledger = Ledger(tmp_path / "out", "token")
    ledger.make_folders()
    ledger.make_drafts()
    store_plan(ledger, stage, ledger.stored_inputs(stage.inputs()), list(stage.units()))
    tar = tmp_path / "raw" / "0.tar"
    tar.write_bytes(tar_of("x"))  # of the same size
    done: list[Event] = []
    job = Job(
        stage=to_plain(stage),
        out_dir=str(ledger.out_dir),
        token="token",
        retries=0,
        max_skip_rate=0.0,
    )
    work_job(job, stage, ledger.read_units(), done.append)
    failed = [event.message for event in done if event.kind == "failed"]
    assert failed == [f"{tar}: was changed after it was listed"]
    assert [event.unit for event in done if event.kind == "done"] == ["000001"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoChecksums(TarSource):
    """A source of a user whose parts name neither a checksum nor a file."""

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        for number, part in enumerate(TarSource.parts(self, per_shard)):
            yield SourcePart(input={"number": number}, num_rows=part.num_rows)

    @contextmanager
    def open(self) -> Iterator[Read]:
        parts = [part.input for part in TarSource.parts(self, None)]
        with TarSource.open(self) as read:
            yield lambda part: read(parts[part["number"]])


def test_where_nothing_has_a_checksum_another_time_is_another_input(tmp_path: Path) -> None:
    make_raw(tmp_path)
    stage = Ingest(source=NoChecksums(tars=(f"{tmp_path}/raw/*.tar",)), shape=PairShape())
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    assert run_stage(stage, tmp_path / "out", workers=0).num_done == 0
    os.utime(tmp_path / "raw" / "0.tar", ns=(1, 1))
    with pytest.raises(StaleError, match=r"changed: .*0\.tar"):
        run_stage(stage, tmp_path / "out", workers=0)


def write_rows(path: Path, word: str) -> None:
    """Write a table whose size and time do not tell what it holds."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist([{"text": f"{word} {n}"} for n in range(4)])
    pytest.importorskip("pyarrow.parquet").write_table(table, path, compression="none")
    os.utime(path, ns=(10**18, 10**18))


def test_a_file_that_changes_between_units_with_its_old_size_and_time_is_noticed(
    tmp_path: Path,
) -> None:
    raw, out = tmp_path / "rows.parquet", tmp_path / "out"
    options: dict[str, Any] = {"shape": "text", "per_shard": 1, "workers": 0}
    write_rows(raw, "aaaa")
    sm.ingest(raw, out, part="1/2", **options)
    write_rows(raw, "bbbb")
    with pytest.raises(StaleError, match="size and time of before: touch"):
        sm.ingest(raw, out, **options)
    assert not (out / "manifest.json").exists()
    raw.touch()
    sm.ingest(raw, out, **options)
    texts = [sample.document.segments[0].text for sample in sm.open(out)]
    assert texts == [f"bbbb {n}" for n in range(4)]


def test_packs_know_their_tokens_by_what_they_hold(tmp_path: Path) -> None:
    digests = []
    for word in ("aaaa", "bbbb"):
        home = tmp_path / word
        home.mkdir()
        (home / "texts.jsonl").write_text(json.dumps({"text": f"{word} {word}"}) + "\n")
        sm.tokenize(home / "texts.jsonl", home / "tokens", workers=0)
        sm.plan(home / "tokens", home / "packs.plan", capacity=64)
        sm.pack(home / "tokens", home / "packs.plan", home / "packs", workers=0)
        digests.append([unit.digest for unit in Ledger(home / "packs").read_units()])
    assert digests[0] != digests[1]


@pytest.mark.parametrize("damaged", ["../raw.parquet", '"read": "', "missing file"])
def test_check_covers_places_and_what_receipts_say_besides(tmp_path: Path, damaged: str) -> None:
    out = tmp_path / "out"
    if damaged == "missing file":
        (tmp_path / "raw.jsonl").write_text('{"image": "gone.jpg", "caption": "x"}\n')
        sm.ingest(tmp_path / "raw.jsonl", out, workers=0, max_skip_rate=1.0, allow_empty=True)
    else:
        write_rows(tmp_path / "raw.parquet", "aaaa")
        sm.ingest(tmp_path / "raw.parquet", out, shape="text", workers=0)
    path = out / ("units.jsonl" if "raw" in damaged else "receipts/000000.json")
    at = path.read_bytes().index(damaged.encode()) + len(damaged) - (damaged != '"read": "')
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    assert sm.check(out).sound
    path.write_bytes(content)
    assert not sm.check(out).sound
