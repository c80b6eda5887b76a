from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_media import image
from sample_folder import write_sample_folder
from samples_for_tests import store_samples
from token_folder import SPACE, write_token_folder
from video_tars import write_video_tar

from shardmill.errors import ConfigError
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.model.manifest import Manifest
from shardmill.model.plan import PackSpec
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.stages.check.specimens import Collection, dump_specimens, open_collection, spread
from shardmill.stages.index import IndexTars
from shardmill.stages.inputs import samples_behind, space_of, tokens_behind
from shardmill.stages.pack import Materialize
from shardmill.stages.tokenize import Tokenize
from shardmill.tokens.layout import ImageLayout
from shardmill.tokens.templates.documents import Captions
from shardmill.tokens.text.sentencepiece import SentencePieceText


def test_a_pack_of_others_has_its_text_and_images(tmp_path: Path) -> None:
    write_video_tar(tmp_path / "a.tar", [1, 2])
    run_stage(IndexTars(tars=(str(tmp_path / "a.tar"),)), tmp_path / "index", workers=0)
    with open_collection(tmp_path / "index", VIDEO_SPACE) as collection:
        specimen = collection.take(0, 0.5)
    assert specimen is not None
    assert specimen.truth == ["question 1\nanswer</s>"]
    assert sorted(specimen.media) == ["0.jpg", "1.jpg"]
    assert len(specimen.rows) == 1 and len(specimen.rows[0].media) == 2


def test_an_empty_shard_has_none(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "tokens", [[]])
    with open_collection(folder, VIDEO_SPACE) as collection:
        assert collection.take(0, 0.5) is None


def test_what_is_neither_samples_nor_tokens_cannot_be_shown(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "tokens", [[]])
    manifest = open_manifest(folder)
    shard = replace(manifest.shards[0], num_samples=1, files={})
    strange = Collection(folder, replace(manifest, shards=(shard,)), None, VIDEO_SPACE)
    with pytest.raises(ConfigError, match="neither samples nor tokens"):
        strange.take(0, 0.0)


def made_from(folder: Path, content: str, **reads: Path) -> Manifest:
    places = {role: (str(place),) for role, place in reads.items()}
    return replace(open_manifest(folder), content=content, reads=places)


def test_packs_know_their_tokens_and_tokens_their_samples(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = made_from(samples, "packs", tokens=tokens)
    assert tokens_behind(samples, packs) == (tokens, open_manifest(tokens))
    assert space_of(samples, packs) == SPACE
    made = made_from(tokens, "tokens", samples=samples)
    assert samples_behind(tokens, made) == samples
    assert tokens_behind(tokens, made) == (tokens, made)


def test_what_is_gone_or_unknown_is_left_out(tmp_path: Path) -> None:
    samples = write_sample_folder(tmp_path / "samples", [])
    packs = made_from(samples, "packs", tokens=tmp_path / "gone")
    assert tokens_behind(samples, packs) == (samples, packs)
    assert space_of(samples, packs) is None
    assert samples_behind(samples, made_from(samples, "tokens", samples=tmp_path / "gone")) is None
    assert samples_behind(samples, made_from(samples, "codes", samples=samples)) is None
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    (tokens / "shards" / "00000.idx").write_bytes(b"")
    assert space_of(samples, made_from(samples, "packs", tokens=tokens)) is None


def test_an_export_of_packs_leads_to_their_tokens(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[]])
    packs = write_token_folder(tmp_path / "packs", [[]])
    manifest = made_from(packs, "packs", tokens=tokens)
    ledger = Ledger(packs, "again")
    ledger.draft_dir.mkdir(parents=True, exist_ok=True)
    ledger.write_manifest(manifest)
    samples = write_sample_folder(tmp_path / "export", [])
    export = made_from(samples, "export", input=packs)
    assert tokens_behind(samples, export)[0] == tokens


PACK_SPACE = TokenSpace(text_size=32_768, added=("im_patch", "im_start", "im_end"))


LAYOUT = ImageLayout(before=("im_start",), after=("im_end",), patch="im_patch", num_patches=4)


def sample(number: int) -> Sample:
    segments = (
        Segment(kind="image", media="0.jpg", time_s=(0.0, 0.0)),
        Segment(kind="image", media="1.jpg", time_s=(1.5, 1.5)),
        Segment(kind="text", text=f"cat number {number}"),
    )
    media = {f"{n}.jpg": image(seed=2 * number + n) for n in (0, 1)}
    return Sample(key=f"k{number}", document=Document(segments), media=media)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with samples, tokens, packs and packs in tars."""
    folder = tmp_path_factory.mktemp("dump")
    store_samples(folder / "samples", [sample(number) for number in range(6)], 3, None)
    tokenize = Tokenize(
        input_dir=folder / "samples",
        tokenizer=SentencePieceText(path=Path("bundled")),
        template=Captions(),
        space=PACK_SPACE,
        layout=LAYOUT,
    )
    run_stage(tokenize, folder / "tokens", workers=0)
    plan = plan_packs(token_lengths(folder / "tokens"), PackSpec(capacity=50))
    write_plan(folder / "packs.plan", plan)
    stage = Materialize(tokens_dir=folder / "tokens", plan_path=folder / "packs.plan")
    run_stage(stage, folder / "packs", workers=0)
    tars = Materialize(
        tokens_dir=folder / "tokens",
        plan_path=folder / "packs.plan",
        format="tar",
        samples_dir=folder / "samples",
    )
    run_stage(tars, folder / "tars", workers=0)
    return folder


def test_a_row(made: Path, tmp_path: Path) -> None:
    first = dump_specimens(made / "tokens", tmp_path, 2)[0]
    assert first.name == "000-k1"
    told = (first / "ground_truth.txt").read_text()
    assert told == "[image 0.jpg 0.00-0.00 s]\n[image 1.jpg 1.50-1.50 s]\ncat number 1\n"
    tokens = (first / "detokenized_tokens.txt").read_text()
    assert tokens.startswith("<s><im_start>[image 0.jpg: 1 x 2 x 2, 4 tokens]<im_end>")
    assert (first / "unmasked_tokens.txt").read_text().strip() == "cat number 1</s>"
    images = sorted((first / "images").iterdir())
    assert [path.read_bytes() for path in images] == [image(seed=2), image(seed=3)]


@pytest.mark.parametrize("form", ["packs", "tars"])
def test_a_pack(made: Path, tmp_path: Path, form: str) -> None:
    found = dump_specimens(made / form, tmp_path, 1)[0]
    told = (found / "ground_truth.txt").read_text()
    learned = (found / "unmasked_tokens.txt").read_text()
    assert told.count("cat number") == learned.count("cat number") == 2
    assert learned.count("</s>") == 2
    assert len(list((found / "images").iterdir())) == 4


def test_samples_have_no_tokens(made: Path, tmp_path: Path) -> None:
    found = dump_specimens(made / "samples", tmp_path, 1)[0]
    assert sorted(path.name for path in found.iterdir()) == ["ground_truth.txt", "images"]


def test_packs_of_others_are_shown_by_numbers(tmp_path: Path) -> None:
    write_video_tar(tmp_path / "a.tar", [1])
    run_stage(IndexTars(tars=(str(tmp_path / "a.tar"),)), tmp_path / "index", workers=0)
    (found,) = dump_specimens(tmp_path / "index", tmp_path / "dump", 5)
    assert list((tmp_path / "dump").iterdir()) == [found]
    assert (found / "unmasked_tokens.txt").read_text().split() == ["200", "2"]
    assert "<im_start>[image" in (found / "detokenized_tokens.txt").read_text()


def test_no_key_leaves_the_folder(tmp_path: Path) -> None:
    row = TokenRow(key="../../a\0b/..", ids=np.array([5]))
    folder = write_token_folder(tmp_path / "tokens", [[row]])
    (found,) = dump_specimens(folder, tmp_path / "dump", 1)
    assert found.parent == tmp_path / "dump" and found.is_dir()


@given(st.integers(0, 50), st.integers(1, 100))
def test_places_are_spread_over_all_shards(num_shards: int, count: int) -> None:
    places = spread(num_shards, count)
    assert all(0 <= shard < num_shards and 0 <= share < 1 for shard, share in places)
    shards = [shard for shard, _ in places]
    assert shards == sorted(shards)
    assert len(set(shards)) == min(count, num_shards) or num_shards == 0
