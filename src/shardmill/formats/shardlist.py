"""The list of tars that some training code reads: [{"url": U, "nsamples": N}, ...].

Written as JSON and as a pickle of the same list, with whole paths, for readers that take either;
nothing here ever loads a pickle.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import orjson

from shardmill.formats.tarplaces import tar_places
from shardmill.io.atomic import write_file

JSON_NAME = "shardlist.json"
PICKLE_NAME = "shardlist.pkl"
PICKLE_PROTOCOL = 4  # fixed, so that every Python writes the same bytes


def write_shard_list(folder: Path) -> tuple[Path, Path]:
    """Write FOLDER/shardlist.json and .pkl for a finished folder and return their paths."""
    shards = [
        {"url": place.absolute(folder), "nsamples": place.num_samples}
        for place in tar_places(folder)
    ]
    json_path, pickle_path = folder / JSON_NAME, folder / PICKLE_NAME
    write_file(json_path, orjson.dumps(shards, option=orjson.OPT_INDENT_2) + b"\n")
    write_file(pickle_path, pickle.dumps(shards, protocol=PICKLE_PROTOCOL))
    return json_path, pickle_path
