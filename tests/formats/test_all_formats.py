"""The closing proof: one data set in every format, read by each one's own library, found equal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lossy_export import lossy_export
from mixed_folder import SIDE, Mixed, codes_of, make_mixed

from shardmill.formats.finder import open_reader
from shardmill.formats.format import OF_ROWS, OF_SAMPLES
from shardmill.model.codec import build
from shardmill.model.tokenrow import TokenRow, mask_of
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import open_tokens
from shardmill.stages.check.folder import check_folder
from shardmill.stages.same import compare

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import peer_environment

SUPPORT = Path(__file__).parents[1] / "support"
# name -> the format, and the samples whose media it copies
OF_TOKENS: dict[str, dict[str, Any]] = {
    "megatron": {"kind": "megatron", "prefix": "all"},
    "hf": {"kind": "hf"},
    "parquet": {"kind": "hf", "files": "parquet"},
    "tensordict": {"kind": "tensordict", "length": 3100, "pad_id": 0},
    "webdataset": {"kind": "webdataset", "samples": "samples"},
    "arrays": {"kind": "webdataset", "arrays": True},
    "dashed": {"kind": "webdataset", "layout": "dashed", "samples": "samples"},
    "energon": {"kind": "energon", "samples": "samples"},
    "mds": {"kind": "mds"},
    "litdata": {"kind": "litdata"},
}
# Of the tokens of one image and a text each: this layout, and all that tell the two apart.
OF_IMAGES: dict[str, dict[str, Any]] = {
    "pairs": {"kind": "tensordict-pairs", "img_length": SIDE**2, "txt_length": 16, "pad_id": 0},
    **{name: OF_TOKENS[name] for name in ("tensordict", "webdataset", "arrays", "energon", "mds")},
}
OF_PAIRS: dict[str, dict[str, Any]] = {
    "liquid": {"kind": "liquid"},
    "liquid-jsonl": {"kind": "liquid", "files": "jsonl"},
    "liquid-pairs": {"kind": "liquid-pairs"},
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    folder = tmp_path_factory.mktemp("mixed")
    made = make_mixed(folder)
    of_source = {"tokens": OF_TOKENS, "packs": OF_TOKENS, "with_images": OF_IMAGES}
    for source, formats in of_source.items():
        for name, plain in formats.items():
            fields = {**plain, "samples": str(made.samples)} if "samples" in plain else plain
            export(getattr(made, source), folder / f"{source}-{name}", fields)
    for name, plain in OF_PAIRS.items():
        export(made.pairs, folder / name, plain, codes_dir=made.codes)
    export(made.pairs, folder / "images", {"kind": "liquid-pairs"})
    export(made.samples, folder / "samples-webdataset", {"kind": "webdataset"})
    export(made.samples, folder / "samples-energon", {"kind": "energon"})
    return made


def export(source: Path, out: Path, plain: dict[str, Any], codes_dir: Path | None = None) -> None:
    stage = lossy_export(input_dir=source, format=build(FORMATS, plain), codes_dir=codes_dir)
    if source.name == "with_images":  # whose media are all image codes, which a TensorDict knows
        stage = replace(stage, drop=tuple({*stage.drop} - {"modality"}))
    report = run_stage(stage, out, workers=0)
    assert report.complete, (plain, report.failures)
    assert check_folder(out).sound


def folder_of(mixed: Mixed, name: str) -> str:
    return str(mixed.tokens.parent / name)


@pytest.mark.parametrize("source", ["tokens", "packs"])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_every_format_holds_the_same_tokens(mixed: Mixed, source: str, name: str) -> None:
    ours = open_reader(folder_of(mixed, source))
    found = compare(ours, open_reader(folder_of(mixed, f"{source}-{name}")))
    assert found.difference is None
    assert "tokens" in found.compared
    assert found.num_tokens == sum(len(row.ids) for row in mixed.rows)
    if name in ("hf", "parquet", "webdataset", "arrays", "dashed", "energon", "mds"):
        assert set(found.compared) >= OF_ROWS
    if name in ("webdataset", "arrays", "dashed", "energon", "mds"):
        assert "codes" in found.compared


def test_formats_are_the_same_among_each_other(mixed: Mixed) -> None:
    names = [f"packs-{name}" for name in OF_TOKENS]
    for first, second in zip(names, [*names[1:], names[0]]):
        pair = (open_reader(folder_of(mixed, name)) for name in (first, second))
        assert compare(*pair).same, (first, second)


@pytest.mark.parametrize(
    "name", ["with_images", *(f"with_images-{n}" for n in OF_IMAGES if n != "pairs")]
)
def test_images_and_texts_apart_are_those_of_every_format(mixed: Mixed, name: str) -> None:
    pairs = open_reader(folder_of(mixed, "with_images-pairs"))
    found = compare(pairs, open_reader(folder_of(mixed, name)))
    assert found.difference is None
    assert set(found.compared) - {"idx"} == {"words", "codes"}
    assert found.num_records == open_manifest(mixed.with_images).num_samples > 3


def test_a_text_that_was_cut_is_found(mixed: Mixed) -> None:
    plain = {**OF_IMAGES["pairs"], "txt_length": 8, "overlong": "cut"}
    export(mixed.with_images, mixed.with_images.parent / "with_images-cut", plain)
    readers = (open_reader(folder_of(mixed, name)) for name in ("with_images", "with_images-cut"))
    difference = compare(*readers).difference
    assert difference is not None
    assert (difference.aspect, difference.what[:8]) == ("words", "11 and 8")


def test_rows_of_pairs_hold_the_same_texts_codes_and_images(mixed: Mixed) -> None:
    ours = open_reader(folder_of(mixed, "pairs"), codes_dir=str(mixed.codes))
    for name in OF_PAIRS:
        found = compare(ours, open_reader(folder_of(mixed, name)))
        assert found.difference is None, name
        assert set(found.compared) == {"text", "codes"}
    found = compare(ours, open_reader(folder_of(mixed, "images")))
    assert found.difference is None
    assert set(found.compared) == {"text", "media"}


def test_samples_keep_their_bytes(mixed: Mixed) -> None:
    for name in ("samples-webdataset", "samples-energon"):
        found = compare(
            open_reader(folder_of(mixed, "samples")), open_reader(folder_of(mixed, name))
        )
        assert found.same
        assert set(found.compared) == OF_SAMPLES


def test_tokens_of_codes_are_the_codes(mixed: Mixed) -> None:
    found = compare(open_reader(folder_of(mixed, "codes")), open_reader(folder_of(mixed, "tokens")))
    assert found.difference is None
    assert set(found.compared) == {"keys", "codes"}


def read_back(mixed: Mixed, names: dict[str, str], peer: str | None = None) -> list[Any]:
    """Return what the libraries read: kind -> name of the folder."""
    words = [word for kind, name in names.items() for word in (kind, folder_of(mixed, name))]
    environment = {**peer_environment(peer), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    environment["HF_DATASETS_CACHE"] = folder_of(mixed, "cache")
    command = [sys.executable, str(SUPPORT / "read_back.py"), *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]


def packs_of(mixed: Mixed) -> list[list[TokenRow]]:
    packs: list[list[TokenRow]] = []
    for row in open_tokens(mixed.packs):
        packs = [*packs[:-1], [*packs[-1], row]] if row.continues else [*packs, [row]]
    return packs


def ids_of(packs: list[list[TokenRow]]) -> list[list[int]]:
    return [[int(token) for row in pack for token in row.ids] for pack in packs]


@pytest.fixture(scope="module")
def libraries(mixed: Mixed) -> dict[str, Any]:
    """Return what the libraries of this environment read, all in one process."""
    names = {kind: f"packs-{kind}" for kind in ("hf", "parquet", "webdataset", "energon")}
    names |= {"liquid": "liquid", "tensordict": "tokens-tensordict", "pairs": "with_images-pairs"}
    names |= {"lint:packs": "packs-energon", "lint:samples": "samples-energon"}
    return dict(zip(names, read_back(mixed, names), strict=True))


def test_hugging_face_and_webdataset_read_packs(mixed: Mixed, libraries: dict[str, Any]) -> None:
    wanted = ids_of(packs_of(mixed))
    for kind in ("hf", "parquet", "webdataset"):
        assert libraries[kind] == wanted, kind


def test_liquid_reads_texts_and_codes(mixed: Mixed, libraries: dict[str, Any]) -> None:
    rows = libraries["liquid"]
    assert len(rows) == open_manifest(mixed.pairs).num_samples
    assert rows[0][1] == "no"
    assert json.loads(rows[1][1]) == codes_of(mixed.rows[1].key, "jpg").reshape(-1).tolist()


def test_tensordict_reads_raw_codes(mixed: Mixed, libraries: dict[str, Any]) -> None:
    space = open_tokens(mixed.tokens).space
    assert space is not None
    for row, ids in zip(mixed.rows, libraries["tensordict"], strict=True):
        wanted = [i - space.code_offset if space.is_code(i) else i for i in row.ids.tolist()]
        assert ids == wanted


def test_tensordict_reads_images_and_texts(mixed: Mixed, libraries: dict[str, Any]) -> None:
    rows = [row for row in mixed.rows if [span.name for span in row.media] == ["jpg"]]
    for row, (text, codes) in zip(rows, libraries["pairs"], strict=True):
        (image,) = row.media
        assert codes == codes_of(row.key, "jpg").reshape(-1).tolist()
        assert text == row.ids[image.end :].tolist()


def test_energon_reads_tokens_masks_and_media(mixed: Mixed, libraries: dict[str, Any]) -> None:
    packs, found = packs_of(mixed), libraries["energon"]
    assert [ids for ids, _, _ in found] == ids_of(packs)
    for pack, (_, mask, num_media) in zip(packs, found):
        assert mask == [int(m) for row in pack for m in mask_of(row.loss, len(row.ids))]
        assert num_media == sum(len(row.media) for row in pack)


@pytest.mark.parametrize("name", ["packs", "samples"])
def test_energon_finds_nothing_to_complain_of(libraries: dict[str, Any], name: str) -> None:
    code, output = libraries[f"lint:{name}"]
    assert code == 0, output


def test_megatron_reads_packs_as_documents(mixed: Mixed) -> None:
    (found,) = read_back(mixed, {"megatron": "packs-megatron"}, "megatron")
    assert found == ids_of(packs_of(mixed))


def test_wids_reads_by_number(mixed: Mixed) -> None:
    (found,) = read_back(mixed, {"wids": "packs-webdataset"}, "wids")
    assert found == ids_of(packs_of(mixed))


def test_streaming_reads_mds(mixed: Mixed) -> None:
    (found,) = read_back(mixed, {"mds": "packs-mds"}, "streaming")
    packs = packs_of(mixed)
    assert [ids for ids, _, _ in found] == ids_of(packs)
    for pack, (_, mask, keys) in zip(packs, found):
        assert mask == [int(m) for row in pack for m in mask_of(row.loss, len(row.ids))]
        assert keys == [row.key for row in pack]


def test_litdata_reads_one_line_of_tokens(mixed: Mixed) -> None:
    (found,) = read_back(mixed, {"litdata": "packs-litdata"}, "litdata")
    assert found == [token for ids in ids_of(packs_of(mixed)) for token in ids]
