from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from make_media import image

from shardmill.errors import ConfigError
from shardmill.sources.folder import FolderSource
from shardmill.sources.guess import guess_shape, shape_of, source_from_input
from shardmill.sources.nemo import NemoSource
from shardmill.sources.tables import TableSource
from shardmill.sources.tars import TarSource


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image() if name.endswith("jpg") else b'{"text": "words"}\n')
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.jpg", "a.txt", "sub/b.jpg", "b.json"], FolderSource),
        (["a.jsonl", "sub/b.jsonl.zst"], TableSource),
        (["a.json"], TableSource),
        (["data-00000-of-00001.arrow", "dataset_info.json", "state.json"], TableSource),
        (["a-0000.tar", "a-0001.tar", "shardindex.json"], TarSource),
        (["stage.json", "manifest.json", "shards/000000.tar", "units.jsonl"], TarSource),
    ],
)
def test_what_a_folder_holds_tells_the_source(
    tmp_path: Path, names: list[str], expected: type
) -> None:
    source = source_from_input([str(fill(tmp_path / "in", *names))])
    assert isinstance(source, expected)
    assert source.name == "in" or "stage.json" in names


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a.jsonl", "b.csv"], TableSource),
        (["*.jsonl"], TableSource),
        (["notes.txt"], TableSource),
        (["x-{0000..0575}.tar"], TarSource),
        (["s3://bucket/x-{0000..0575}.tar"], TarSource),
    ],
)
def test_what_is_typed_tells_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: type
) -> None:
    monkeypatch.chdir(fill(tmp_path, "a.jsonl", "b.csv", "notes.txt"))
    assert isinstance(source_from_input(given), expected)


def test_paths_are_stored_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path, "a.jsonl", "photos/a.jpg"))
    source = source_from_input(["a.jsonl"], media_root="photos", columns=None)
    assert source == TableSource(
        files=(str(tmp_path / "a.jsonl"),), name="a", media_root=str(tmp_path / "photos")
    )


def test_a_meta_file_is_known_by_what_it_says(tmp_path: Path) -> None:
    fill(tmp_path, "rows.jsonl")
    (tmp_path / "meta.json").write_text(json.dumps({"a": {"file_name": "rows.jsonl"}}))
    assert isinstance(source_from_input([str(tmp_path / "meta.json")]), NemoSource)


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ([], [], "no input"),
        (["x.md"], [""], "holds no media, tables or tars"),
        (["a.jsonl", "p/a.jpg"], [""], "more than one kind of input"),
        (
            ["a.jsonl", "b.tar"],
            ["a.jsonl", "b.tar"],
            r"different kinds: table \(.*a.jsonl\), tars \(.*b.tar\)",
        ),
        (["a.md"], ["a.md"], "cannot tell what"),
        (["stage.json", "shards/0.tar"], [""], "is not finished"),
        (["p/a.jpg", "q/a.jpg"], ["p", "q", "p/a.jpg"], "a.jpg is named twice, by itself and with"),
        (["a.jpg"], ["*.png"], "no file matches"),
        (["a.jpg"], ["b.jpg"], "does not exist; did you mean .*a.jpg"),
        ([], ["owner/name"], "does not exist"),
    ],
)
def test_what_is_not_clear_is_an_error(
    tmp_path: Path, names: list[str], given: list[str], message: str
) -> None:
    fill(tmp_path, *names)
    with pytest.raises(ConfigError, match=message):
        list(source_from_input([str(tmp_path / place) for place in given]).parts(None))


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (["p/a.jpg"], ["a"]),
        (["p/*.jpg"], ["a", "b"]),
        (["p"], ["a", "b", "deep/c"]),
        (["p", "q"], ["p/a", "p/b", "p/deep/c", "q/a"]),
        (["{p,q}"], ["p/a", "p/b", "p/deep/c", "q/a"]),
        (["*/a.jpg"], ["p/a", "q/a"]),
    ],
)
def test_folders_and_media_are_named_by_patterns(
    tmp_path: Path, given: list[str], keys: list[str]
) -> None:
    fill(tmp_path, "p/a.jpg", "p/b.jpg", "p/b.txt", "p/deep/c.jpg", "q/a.jpg", "p/x.md")
    source = source_from_input([str(tmp_path / place) for place in given])
    assert isinstance(source, FolderSource)
    with source.open() as read:
        rows = [row for part in source.parts(2) for row in read(part.input)]
    assert [row.key for row in rows] == keys
    for row in rows:  # it reads in the folder that was named, and no further up
        assert (Path(row.media_dir) / row.fields["image"]).is_file()
        assert given != ["p", "q"] or row.media_dir != str(tmp_path)
    assert [row.key for row in rows if "text" in row.fields] == [k for k in keys if k[-1] == "b"]
    assert source.inputs()


def test_the_name_of_a_hub_says_how_to_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="hf download owner/name --repo-type dataset"):
        source_from_input(["owner/name"])


def test_an_option_without_meaning_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg")
    with pytest.raises(ConfigError, match="columns has no meaning for input of kind 'folder'"):
        source_from_input([str(tmp_path)], columns=("a",))


def test_the_kind_can_be_said(tmp_path: Path) -> None:
    fill(tmp_path, "a.jsonl", "p/a.jpg")
    assert isinstance(source_from_input([str(tmp_path)], kind="folder"), FolderSource)


def test_the_first_good_rows_tell_the_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("broken\n" * 100 + '{"image": "a.jpg", "caption": "x"}\n')
    assert type(shape_of(source_from_input([str(path)]))).__name__ == "PairShape"
    path.write_text("broken\n" * 3)
    with pytest.raises(ConfigError, match="no row that can be read"):
        shape_of(source_from_input([str(path)]))


TURN = {"from": "human", "value": "x"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"segments": [], "extra": {}}, "DocumentShape"),
        ({"image": "a", "conversations": [TURN], "text": "x"}, "LlavaShape"),
        ({"messages": [{"role": "user", "content": "x"}], "images": []}, "MessagesShape"),
        ({"text_list": ["a"], "image_info": []}, "Mmc4Shape"),
        ({"image_path": "a", "text_prompt": "t"}, "LiquidShape"),
        ({"image_path": "a", "text": "t"}, "PairShape"),
        ({"url": "http://x/a.jpg", "caption": "t"}, "PairShape"),
        ({"url": "http://x/a.jpg?w=3", "text": "t"}, "PairShape"),
        ({"URL": "http://x/a", "TEXT": "t"}, "PairShape"),
        ({"images": [], "texts": [{"user": "x", "assistant": "y"}]}, "FineVisionShape"),
        ({"video": "a.mp4", "text": "t"}, "PairShape"),
        ({"text": "t", "url": "http://page"}, "TextShape"),
        ({"content": "t"}, "TextShape"),
        ({"video_path": "a.mp4", "value": "t"}, "VideoShape"),
        ({"video_path": "a.mp4", "value": [TURN]}, "VideoShape"),
        ({"video": "a.mp4", "QA": [{"q": "x", "a": "y"}]}, "VideoChat2Shape"),
        ({"clips": [{"clip_path": "a", "caption": "t"}]}, "HowtoInterlinkShape"),
        ({"prompt": "<image>", "txt": "t", "images": ["a"]}, "PromptShape"),
        ({"clip_path": "a/b/c", "caption": "t"}, "How2LinkShape"),
        ({"image_info": [{"image_name": "a"}], "text_list": "<image>#1#x"}, "MerlinShape"),
        ({"YoutubeID": "a", "Start_timestamp": "0", "Caption": "t"}, "InternVidShape"),
        ({"source": "a.jpg", "target": "b.jpg", "prompt": "t"}, "UniControlShape"),
    ],
)
def test_the_fields_tell_the_shape(row: dict[str, Any], expected: str) -> None:
    assert type(guess_shape([row])).__name__ == expected


def test_most_rows_decide() -> None:
    rows = [{"image": "a", "caption": "t"}] * 3 + [{"x": 1}] * 2
    assert type(guess_shape(rows)).__name__ == "PairShape"


@pytest.mark.parametrize("rows", [[], [{"x": 1, "y": 2}]])
def test_no_shape_is_an_error_that_lists_what_was_seen(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"columns are (x, y|none): name it by --shape, one of"):
        guess_shape(rows)
