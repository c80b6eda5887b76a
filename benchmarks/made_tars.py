"""Tars of made samples with our index beside each, and the samples of them as we open them."""

from __future__ import annotations

from pathlib import Path

from made_samples import make_samples

Made = tuple[str, bytes, bytes]
INDEX = "index"  # not idx, which Energon takes for its own


def made_shards(num: int, mean_bytes: int, num_shards: int) -> list[list[Made]]:
    """Return made samples in shards of the same length."""
    samples = make_samples(num, mean_bytes)
    return [[next(samples) for _ in range(num // num_shards)] for _ in range(num_shards)]


def write_tars(folder: str, num: int, mean_bytes: int, num_shards: int) -> None:
    """Write a tar and its index for each shard, all of which readers of tars may share."""
    from shardmill.shards.tar.index import IndexRows
    from shardmill.shards.tar.write import TarWriter

    for number, shard in enumerate(made_shards(num, mean_bytes, num_shards)):
        rows, path = IndexRows(), Path(folder) / f"{number:05d}.tar"
        with TarWriter(path) as tar:
            for key, image, text in shard:
                start, at = tar.add(key, [("jpg", image), ("json", text)])
                rows.add(key, start, at.exts, at.offsets, at.sizes)
            end = tar.num_bytes
        rows.write(path.with_suffix(f".{INDEX}"), end=end, num_bytes=tar.num_bytes)


def open_tars(folder: str, num: int, num_shards: int):
    """Return the samples of what `write_tars` wrote."""
    from shardmill.model.manifest import FileEntry, ShardEntry
    from shardmill.shards.samples import SampleDataset

    entries = []
    for name in (f"{number:05d}" for number in range(num_shards)):
        files = {"tar": FileEntry(f"{name}.tar", 0, ""), "idx": FileEntry(f"{name}.{INDEX}", 0, "")}
        entries.append(ShardEntry(name, num // num_shards, files))
    return SampleDataset(Path(folder), entries)
