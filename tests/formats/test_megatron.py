"""Megatron's own reader on what is exported: one prefix a shard, one for all, and a blend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lossy_export import lossy_export
from token_folder import write_token_folder

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.megatron import MegatronFormat, MegatronReader
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.ids import open_megatron_index, write_megatron_index

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import peer_environment

# One process for all, because importing Megatron takes seconds.
PROGRAM = """
import json, sys
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset

class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = 1000, 999, 998, {"class": "Tokenizer"}

def read(prefix):
    data = IndexedDataset(prefix)
    return {"rows": [data[i].tolist() for i in range(len(data))],
            "documents": data.document_indices.tolist(), "dtype": str(data[0].dtype)}

def blend(prefixes):
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=8, blend=(prefixes, [0.75, 0.25]), split="100,0,0",
        tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
        eod_mask_loss=False, create_attention_mask=False)
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [40, 0, 0], lambda: True, config)
    train = builder.build()[0]
    return [train[i]["tokens"].tolist() for i in range(40)]

wanted = json.loads(sys.argv[1])
print(json.dumps({"read": [read(prefix) for prefix in wanted["read"]],
                  "blend": blend(wanted["blend"])}))
"""


def make_rows(first: int, count: int) -> list[TokenRow]:
    """Rows of many lengths; every third goes on with the one before."""
    return [
        TokenRow(
            key=f"k{number}",
            ids=(np.arange(1 + number * 7 % 23) * 31 + number) % 1000,
            continues=number % 3 == 2,
        )
        for number in range(first, first + count)
    ]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_token_folder(tmp_path / "tokens", [make_rows(0, 20), make_rows(20, 7), []])


def run(tokens: Path, out: Path, num_shards: int | None = None, **fields: Any) -> Path:
    stage = lossy_export(input_dir=tokens, format=MegatronFormat(**fields), num_shards=num_shards)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    return out


def expected() -> tuple[list[list[int]], list[int]]:
    rows = make_rows(0, 27)
    starts = [number for number, row in enumerate(rows) if not row.continues]
    return [row.ids.tolist() for row in rows], [*starts, 27]


@pytest.fixture(scope="module")
def by_megatron(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Megatron finds in one prefix for all, in two of shards, and in a blend of two."""
    folder = tmp_path_factory.mktemp("megatron")
    tokens = write_token_folder(folder / "tokens", [make_rows(0, 20), make_rows(20, 7), []])
    one = run(tokens, folder / "one", num_shards=4, prefix="train")
    two = run(tokens, folder / "two", dtype="int32", num_shards=2)
    shards = [
        [TokenRow(key=f"{first}-{n}", ids=np.full(11, first + n)) for n in range(60)]
        for first in (0, 100)
    ]
    blend = run(write_token_folder(folder / "more", shards), folder / "blend")
    names = ["00000", "00001"]
    wanted = {
        "read": [str(one / "train"), *(str(two / "shards" / name) for name in names)],
        "blend": [str(blend / "shards" / name) for name in names],
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(wanted)],
        env=peer_environment("megatron"),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_megatron_reads_one_prefix_for_all(by_megatron: dict[str, Any]) -> None:
    rows, documents = expected()
    assert by_megatron["read"][0] == {"rows": rows, "documents": documents, "dtype": "uint16"}


def test_megatron_reads_a_prefix_of_each_shard(by_megatron: dict[str, Any]) -> None:
    rows, documents = expected()
    first, second = by_megatron["read"][1:]
    assert first["rows"] + second["rows"] == rows
    assert first["dtype"] == second["dtype"] == "int32"
    assert first["documents"] == [d for d in documents if d <= len(first["rows"])]


def test_megatron_blends_the_prefixes_of_shards(by_megatron: dict[str, Any]) -> None:
    sources = [{token // 100 for token in row} for row in by_megatron["blend"]]
    assert sources.count({0}) == 30 and sources.count({1}) == 10


def test_the_cut_between_shards_tears_no_document(tokens: Path, tmp_path: Path) -> None:
    out = run(tokens, tmp_path / "out", num_shards=5)
    num_documents = 0
    for shard in open_manifest(out).shards:
        index = open_megatron_index(out / shard.files["idx"].path)
        assert index.documents[0] == 0 and index.documents[-1] == len(index.lengths)
        num_documents += len(index.documents) - 1
    assert num_documents == len(expected()[1]) - 1


def test_all_in_one_has_the_bytes_of_one_shard(tokens: Path, tmp_path: Path) -> None:
    one = run(tokens, tmp_path / "one", num_shards=1)
    all_in_one = run(tokens, tmp_path / "all", num_shards=6, prefix="x")
    for role in ("bin", "idx"):
        assert (all_in_one / f"x.{role}").read_bytes() == (
            one / f"shards/00000.{role}"
        ).read_bytes()


def test_the_index_is_refused_until_all_is_done(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=MegatronFormat(prefix="x"))
    report = run_stage(stage, tmp_path / "out", workers=0, part=(1, 2))
    assert not report.complete
    with pytest.raises(FormatError, match="not a Megatron index"):
        open_megatron_index(tmp_path / "out" / "x.idx")
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    assert len(open_megatron_index(tmp_path / "out" / "x.idx").lengths) == 27


def test_a_vocabulary_that_is_too_large_is_refused(tmp_path: Path) -> None:
    space = TokenSpace(text_size=70_000)
    rows = [TokenRow(key="a", ids=np.array([69_999]))]
    tokens = write_token_folder(tmp_path / "tokens", [rows], space)
    with pytest.raises(ConfigError, match=r"70000 ids.*int32"):
        run(tokens, tmp_path / "out", dtype="uint16")


@pytest.mark.parametrize("prefix", [None, "x"])
def test_an_empty_folder_is_an_empty_data_set(tmp_path: Path, prefix: str | None) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [])
    out = run(tokens, tmp_path / "out", prefix=prefix)
    assert prefix is None or len(open_megatron_index(out / "x.idx").lengths) == 0


def write_prefix(prefix: Path, documents: list[list[list[int]]], dtype: str = "<u2") -> Path:
    sequences = [sequence for document in documents for sequence in document]
    starts = np.cumsum([0, *(len(document) for document in documents)])[:-1]
    joined = np.array([token for sequence in sequences for token in sequence], dtype)
    prefix.with_name(prefix.name + ".bin").write_bytes(joined.tobytes())
    lengths = np.array([len(sequence) for sequence in sequences])
    with prefix.with_name(prefix.name + ".idx").open("wb") as file:
        write_megatron_index(file, np.dtype(dtype), lengths, starts)
    return prefix


def test_documents_and_their_sequences_come_back(tmp_path: Path) -> None:
    write_prefix(tmp_path / "a.b", [[[1, 2], [3]], [[4, 5, 6]]], "<i4")
    reader = MegatronReader(files=(str(tmp_path / "a.b"),))
    (part,) = reader.parts()
    first, second = reader.read(part.input)
    assert [row.ids.tolist() for row in first.rows] == [[1, 2], [3]]
    assert [row.key for row in first.rows] == ["a_b-00000000", "a_b-00000000~+1"]
    assert [row.continues for row in first.rows] == [False, True]
    assert second.ids().tolist() == [4, 5, 6]
    assert part.num_records == 2


@pytest.mark.parametrize("given", ["x.idx", "x.bin", "x", "", "*.idx"])
def test_a_prefix_may_be_given_in_any_way(tmp_path: Path, given: str) -> None:
    write_prefix(tmp_path / "x", [[[1]]])
    place = str(tmp_path / given) if given else str(tmp_path)
    assert MegatronReader(files=(place, place)).prefixes() == [tmp_path / "x"]


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1, 2, 3]]])
    (tmp_path / "x.bin").write_bytes(b"\1\0")
    reader = MegatronReader(files=(str(tmp_path / "x"),))
    (part,) = reader.parts()
    with pytest.raises(FormatError, match=r"x\.bin: sequence 0 has 3 ids .* cut off"):
        list(reader.read(part.input))


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1]]])
    (tmp_path / "x.bin").unlink()
    with pytest.raises(FormatError, match=r"x\.bin: is missing"):
        list(MegatronReader(files=(str(tmp_path / "x"),)).parts())
    with pytest.raises(ConfigError, match=r"no \.idx files"):
        MegatronReader(files=(str(tmp_path / ".."),)).prefixes()


def test_bounds_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1]], [[2]]])
    raw = (tmp_path / "x.idx").read_bytes()
    (tmp_path / "x.idx").write_bytes(raw[:-24] + np.array([0, 9, 2], "<i8").tobytes())
    with pytest.raises(FormatError, match="bounds"):
        list(MegatronReader(files=(str(tmp_path / "x"),)).parts())
