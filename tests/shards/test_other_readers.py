"""Our shards in the real readers of others: webdataset, wids, Megatron-Energon, GNU tar."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import webdataset
from PIL import Image
from samples_for_tests import store_samples

import shardmill as sm
from shardmill.formats.wids import write_wids_index
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.samples import open_samples

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import peer_environment

NUM = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of caption pairs in three shards; one key takes a prefix in its header."""
    folder = tmp_path_factory.mktemp("data") / "pairs"
    keys = [f"part/{i:04d}" for i in range(NUM - 1)] + ["d" * 90 + "/" + "k" * 60]
    samples = [
        Sample(
            key=key,
            document=Document(
                (Segment(kind="image", media="jpg"), Segment(kind="text", text=f"caption {i} é"))
            ),
            media={"jpg": image(i)},
        )
        for i, key in enumerate(keys)
    ]
    store_samples(folder, samples, per_shard=5)
    return folder


def image(number: int) -> bytes:
    """Return a small JPEG."""
    out = io.BytesIO()
    Image.new("RGB", (16 + number, 16)).save(out, "JPEG")
    return out.getvalue()


def expected(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return image and caption by key, as we read them."""
    return {s.key: (bytes(s.media["jpg"]), s.document.text) for s in open_samples(folder)}


def shard_paths(folder: Path) -> list[str]:
    """Return the tars in order."""
    return sorted(map(str, (folder / "shards").glob("*.tar")))


def test_stock_webdataset(folder: Path) -> None:
    dataset = webdataset.WebDataset(shard_paths(folder), shardshuffle=False, empty_check=False)
    found = {s["__key__"]: (s["jpg"], s["txt"].decode()) for s in dataset}
    assert found == expected(folder)
    decoded = list(
        webdataset.WebDataset(shard_paths(folder), shardshuffle=False).decode().to_tuple("json")
    )
    assert decoded[3][0]["segments"] == [{"image": "jpg"}, {"text": "caption 3 é"}]


def test_gnu_tar(folder: Path, tmp_path: Path) -> None:
    for path in shard_paths(folder):
        subprocess.run(["tar", "-xf", path, "-C", str(tmp_path)], check=True)
    for key, (image, caption) in expected(folder).items():
        assert (tmp_path / f"{key}.jpg").read_bytes() == image
        assert (tmp_path / f"{key}.txt").read_text() == caption


READ_WIDS = """
import json, sys
from wids import ShardListDataset
data = ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], transformations=[])
rows = [[data[i]["__key__"], data[i][".jpg"].read().hex(), data[i][".txt"].read().decode()]
        for i in range(len(data))]
print("\\n" + json.dumps(rows))
"""


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_real_wids(folder: Path, tmp_path: Path, is_elsewhere: bool) -> None:
    """Both of tars of the folder itself and of an index of tars elsewhere."""
    index_path = write_wids_index(folder, name="pairs", with_md5=True)
    if is_elsewhere:
        index_dir = folder.parent / "index"
        sm.index(f"{folder}/shards/*.tar", index_dir, workers=0)
        index_path = index_dir / "shardindex.json"
        assert '"../pairs/shards/' in index_path.read_text()
    (tmp_path / "cache").mkdir()
    command = [sys.executable, "-c", READ_WIDS, str(index_path), str(tmp_path / "cache")]
    try:
        environment = peer_environment("wids")
    except subprocess.CalledProcessError:
        pytest.skip("wids cannot be installed here")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = json.loads(ran.stdout.splitlines()[-1])
    # wids does not read the prefix of a header, so the long key is known to it by its end only.
    found = {key: (bytes.fromhex(image), caption) for key, image, caption in rows}
    ours = {key.removeprefix("d" * 90 + "/"): value for key, value in expected(folder).items()}
    assert found == ours


READ_ENERGON = """
import json, sys
from megatron.energon import WorkerConfig, get_loader, get_train_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
data = get_train_dataset(sys.argv[1], worker_config=config, batch_size=1, repeat=False,
                         shuffle_buffer_size=None, max_samples_per_sequence=None)
rows = [[batch.caption[0], batch.image.shape[-1]] for batch in get_loader(data)]
print("\\n" + json.dumps(rows))
"""


def test_real_energon(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("megatron.energon")
    links = tmp_path / "energon"
    links.mkdir()
    for path in shard_paths(folder):
        (links / Path(path).name).symlink_to(path)
    prepare = [str(Path(sys.executable).parent / "energon"), "prepare", "--non-interactive"]
    prepare += ["--num-workers", "1", "--split-parts", "train:.*", "--no-progress"]
    prepare += ["--sample-type", "CaptioningSample"]
    prepare += ["--field-map", '{"image": "jpg", "caption": "txt"}', str(links)]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(prepare, env=quiet, capture_output=True, check=True)
    info = json.loads((links / ".nv-meta" / ".info.json").read_text())
    assert sum(info["shard_counts"].values()) == NUM
    starts = [s.index.arrays["start"] for s in map(open_samples(folder).shard, range(3))]
    for path, start in zip(sorted(links.glob("*.tar")), starts, strict=True):
        theirs = (links / f"{path.name}.idx").read_bytes()
        assert theirs == start.astype("<i8").tobytes()
    read = [sys.executable, "-c", READ_ENERGON, str(links)]
    ran = subprocess.run(read, env=quiet, capture_output=True, text=True, check=True)
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert sorted(rows) == sorted([f"caption {i} é", 16 + i] for i in range(NUM))
