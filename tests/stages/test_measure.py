"""Lengths are those of the processor, row for row; estimates are marked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hf_processors import chat_template, make_tokenizer, random_chat, their_length, transformers
from make_media import clip, encode, pixels
from sample_folder import write_sample_folder

from shardmill.errors import ConfigError, ShardmillError
from shardmill.media.header import probe
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_lengths
from shardmill.stages import measure as lengthrows
from shardmill.stages.measure import TABLE_NAME, LengthRows, Measure, count_written, merge_lengths
from shardmill.tokens.count import TokenCount, Written
from shardmill.tokens.text.huggingface import TextCounter, load_counter
from shardmill.tokens.text.tokenizer import Ragged, ragged
from shardmill.tokens.visual.internvl import InternVL
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL, QwenImages, QwenVideos
from shardmill.tokens.visual.rule import Visual

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IMAGES = {"min_pixels": 2000, "max_pixels": 20_000}
RULE = Qwen2VL(images=QwenImages(**IMAGES), videos=QwenVideos(**IMAGES))
NOT_MEDIA = b"never looked at"


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(20, 300), height=rng.randint(20, 300))


def film(rng: random.Random) -> MediaSize:
    return MediaSize(width=40, height=30, num_frames=rng.randint(4, 20), fps=9.7)


def said(text: str, role: str | None = "user", turn: int = 0) -> Segment:
    return Segment(kind="text", text=text, role=role, turn=turn)


def shown(media: str, kind: Any = "image", turn: int = 0, role: str = "user") -> Segment:
    return Segment(kind=kind, media=media, role=role, turn=turn)


def sample(key: str, *segments: Segment, source: str = "s", **extra: Any) -> Sample:
    media = {segment.media: NOT_MEDIA for segment in segments if segment.media}
    origin = Origin(source=source, path="p", row=0)
    return Sample(key=key, document=Document(segments), media=media, origin=origin, extra=extra)


def as_sample(key: str, chat: Any) -> tuple[Sample, dict[str, MediaSize]]:
    sizes: dict[str, MediaSize] = {}
    waiting = {kind: iter(items) for kind, items in chat.sizes.items()}
    segments = []
    for turn, message in enumerate(chat.messages):
        for item in message["content"]:
            if item["type"] == "text":
                segments.append(said(item["text"], message["role"], turn))
            else:
                name = f"{len(sizes)}.bin"
                sizes[name] = next(waiting[item["type"]])
                segments.append(shown(name, item["type"], turn, message["role"]))
    return sample(key, *segments), sizes


@pytest.fixture(scope="module")
def processor() -> Any:
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, video = MARKS
    return hf.Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**IMAGES),
        make_tokenizer(*MARKS),
        hf.Qwen2VLVideoProcessor(**IMAGES),
        chat_template(image=start + image + end, video=start + video + end),
    )


@pytest.fixture(scope="module")
def model(processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    processor.save_pretrained(folder)
    return folder


def measure(folder: Path, out: Path, **fields: Any) -> Any:
    stage = Measure(input_dir=folder, rule=RULE, **fields)
    report = run_stage(stage, out, workers=0, max_skip_rate=1.0)
    assert not report.failures
    return merge_lengths(out)


def test_the_table_equals_the_processor_in_every_row(
    tmp_path: Path, processor: Any, model: Path
) -> None:
    rng = random.Random(5)
    chats = [random_chat(rng, {"image": random_image, "video": film}) for _ in range(60)]
    rows = [as_sample(f"k{i}", chat) for i, chat in enumerate(chats)]
    folder = write_sample_folder(tmp_path / "in", [rows[:25], rows[25:26], rows[26:]])
    table = measure(folder, tmp_path / "out", tokenizer=model)
    settings: dict[str, dict[str, Any]] = {"image": {}, "video": {}}
    for row, chat in enumerate(chats):
        rendered = processor.apply_chat_template(chat.messages, tokenize=False)
        assert table.num_tokens[row] == their_length(processor, chat, rendered, settings)
        num_media = sum(map(len, chat.sizes.values()))
        assert table.num_fixed[row] == table.num_visual[row] + 2 * num_media
    assert table.exact
    assert table.shard_names == ("000000", "000001", "000002")
    assert table.shard_starts.tolist() == [0, 25, 26, 60]
    assert open_lengths(tmp_path / "out" / TABLE_NAME).digest == table.digest


SIZE = MediaSize(width=56, height=56)
GOOD = sample("good", shown("jpg"), said("hello"), source="a")
BAD: dict[str, tuple[Sample, dict[str, MediaSize]]] = {
    "unknown media size": (sample("nosize", shown("jpg"), said("hi")), {}),
    "not a conversation": (sample("plain", said("hi", None), source="b"), {}),
    "placeholders and media do not match": (sample("mark", said("see <|image_pad|>")), {}),
    "aspect ratio over 200": (
        sample("thin", shown("jpg")),
        {"jpg": MediaSize(width=1, height=999)},
    ),
}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    rows = [(GOOD, {"jpg": SIZE}), *BAD.values(), (sample("last", said("x"), source="b"), {})]
    return write_sample_folder(tmp_path / "in", [rows])


def test_rejected_samples_keep_their_row_and_the_books_balance(
    mixed: Path, tmp_path: Path, model: Path
) -> None:
    stage = Measure(input_dir=mixed, rule=RULE, tokenizer=model)
    report = run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=1.0)
    assert report.manifest is not None
    assert report.manifest.skipped == dict.fromkeys(sorted(BAD), 1)
    assert (report.manifest.num_in, report.manifest.num_kept) == (6, 2)
    table = merge_lengths(tmp_path / "out")
    reasons = [table.reject_reasons[code - 1] if code else "" for code in table.reject]
    assert reasons == ["", *BAD, ""]
    assert table.num_tokens[1:5].tolist() == [0] * 4
    assert [table.source_names[number] for number in table.source] == ["a", "s", "b", "s", "s", "b"]


def test_unknown_sizes_can_be_guessed_which_marks_the_table(
    mixed: Path, tmp_path: Path, model: Path
) -> None:
    table = measure(mixed, tmp_path / "out", tokenizer=model, unknown="estimate")
    assert not table.exact
    assert (table.reject[1], table.num_visual[1]) == (0, 500)


def test_without_a_tokenizer_all_is_estimated(mixed: Path, tmp_path: Path) -> None:
    table = measure(mixed, tmp_path / "out")
    assert not table.exact
    assert table.num_visual.tolist() == [4, 500, 0, 0, 500, 0]
    assert not table.reject.any()


def test_media_are_never_read(tmp_path: Path, model: Path) -> None:
    folder = write_sample_folder(tmp_path / "in", [[(GOOD, {"jpg": SIZE})] * 1])
    tar = folder / "shards" / "000000.tar"
    content = tar.read_bytes()
    assert NOT_MEDIA in content
    tar.write_bytes(content.replace(NOT_MEDIA, b"?" * len(NOT_MEDIA)))
    assert len(measure(folder, tmp_path / "out", tokenizer=model)) == 1


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path, model: Path) -> None:
    rng = random.Random(6)
    rows = [as_sample(f"k{i}", random_chat(rng, {"image": random_image})) for i in range(30)]
    folder = write_sample_folder(tmp_path / "in", [rows[i : i + 5] for i in range(0, 30, 5)])
    tables = []
    for workers in (0, 2):
        stage = Measure(input_dir=folder, rule=RULE, tokenizer=model)
        run_stage(stage, tmp_path / f"out{workers}", workers=workers)
        merge_lengths(tmp_path / f"out{workers}")
        tables.append((tmp_path / f"out{workers}" / TABLE_NAME).read_bytes())
    assert tables[0] == tables[1]


def test_a_limit_takes_the_first_samples(tmp_path: Path, model: Path) -> None:
    rows = [(sample(f"k{i}", said("x " * i)), {}) for i in range(6)]
    folder = write_sample_folder(tmp_path / "in", [rows[:4], rows[4:]])
    assert len(measure(folder, tmp_path / "out", tokenizer=model, limit=5)) == 5


def test_an_empty_folder_gives_an_empty_table(tmp_path: Path, model: Path) -> None:
    folder = write_sample_folder(tmp_path / "in", [])
    assert len(measure(folder, tmp_path / "out", tokenizer=model)) == 0


def test_a_file_can_hold_the_template(tmp_path: Path, model: Path) -> None:
    rows = [(sample("k", said("x")), {})]
    folder = write_sample_folder(tmp_path / "in", [rows])
    template = tmp_path / "short.jinja"
    template.write_text("<|im_start|>{{ messages[0].content[0].text[:0] }}")
    table = measure(folder, tmp_path / "out", tokenizer=model, template=template)
    assert table.num_tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: f.update(today="tomorrow"), "YYYY-MM-DD"),
        (lambda f: f.update(limit=-1), "limit must be at least 0"),
        (lambda f: f.update(tokenizer=Path("/nowhere")), "does not exist"),
        (lambda f: f.update(template=Path("/nowhere")), "does not exist"),
    ],
)
def test_bad_settings_say_what_to_do(
    change: Callable[[dict[str, Any]], None], problem: str, tmp_path: Path, model: Path
) -> None:
    fields: dict[str, Any] = {"tokenizer": model}
    change(fields)
    folder = write_sample_folder(tmp_path / "in", [[(GOOD, {"jpg": SIZE})]])
    with pytest.raises(ConfigError, match=problem):
        measure(folder, tmp_path / "out", **fields)


def test_an_unfinished_folder_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ShardmillError, match="is not a dataset"):
        measure(tmp_path, tmp_path / "out", tokenizer=model)


def test_the_spec_survives_its_plain_form(tmp_path: Path) -> None:
    stage = Measure(input_dir=tmp_path, rule=RULE, tokenizer=tmp_path, unknown="estimate")
    assert from_plain(to_plain(stage)) == stage


@pytest.mark.parametrize("ext", ["mp4", "mkv", "webm", "avi", "mov"])
@pytest.mark.parametrize("rate", [10, 30, Fraction(24_000, 1001)])
def test_headers_of_real_videos_lead_to_the_frames_that_are_decoded(
    ext: str, rate: Any, tmp_path: Path
) -> None:
    """60 frames at 10 or 30 a second are whole seconds: the least error in a rate would show."""
    av = pytest.importorskip("av")
    codec = {"webm": "libvpx", "avi": "mpeg4"}.get(ext, "libx264")
    path = tmp_path / f"clip.{ext}"
    size = probe("video", clip(path, codec=codec, num_frames=60, rate=rate)).size
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = MediaSize(
            width=stream.width,
            height=stream.height,
            num_frames=sum(1 for _ in container.decode(stream)),
            fps=float(stream.average_rate),
        )
    for rule in (Qwen3VL(), Qwen2VL(videos=QwenVideos(fps=2.0))):
        assert rule.count("video", size) == rule.count("video", found)


def test_images_that_are_turned_count_as_they_are_shown(tmp_path: Path) -> None:
    """A tall image stored lying, with a note to turn it, has the tiles of a tall image."""
    from PIL import Image

    hf = transformers()
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.jpg"
    path.write_bytes(encode("JPEG", pixels(300, 100), exif=exif))
    loaded = hf.image_utils.load_image(str(path))
    size = probe("image", path.read_bytes()).size
    assert (size.width, size.height) == loaded.size == (100, 300)
    assert InternVL().count("image", size).grid == (1, 3, 1)


def encode_letters(texts: Sequence[str]) -> Ragged:
    """A tokenizer with a token for each letter."""
    return ragged([[ord(letter) for letter in text] for text in texts])


LETTERS = TextCounter(
    name="letters",
    engine="reference",
    encode_batch=encode_letters,
    num_added=1,
    specials=(),
    chat_template=None,
    variables={},
)
IMAGE = Visual("[i]", 100, num_outer=2)
FILM = Visual("t[v]t[v]", 60, num_runs=2)


def test_counts_by_hand() -> None:
    both = Written("ab[i]ct[v]t[v]", (IMAGE, FILM), True)
    # 14 letters and 1 added; 99 and 58 tokens are not spelled out.
    assert count_written(LETTERS, [both]) == [
        TokenCount(15 + 99 + 58, 160, (3 + 99 + 2) + (8 + 58))
    ]
    assert count_written(LETTERS, [Written("abc", (), True)]) == [TokenCount(4, 0, 0)]


def test_fixed_tokens_are_never_more_than_all() -> None:
    wide = Visual("[image]", 10, num_outer=2)
    [count] = count_written(LETTERS, [Written("[i]", (wide,), True)])
    assert count.num_fixed == count.num_tokens == 4 + 9


@pytest.mark.parametrize("batch_chars", [1, 5, 1 << 22])
def test_rows_stay_in_order_whatever_the_batches(
    batch_chars: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengthrows, "BATCH_CHARS", batch_chars)
    rows = LengthRows(LETTERS)
    rows.add_written(Written("abc", (), True))
    rows.add_reject("broken")
    rows.add_written(Written("x[i]", (IMAGE,), True))
    rows.add_reject("too odd")
    rows.add_reject("broken")
    rows.add_written(Written("abcde", (), True))
    assert len(rows) == 6
    rows.write(tmp_path / "t", shard="s", source=[0, 1, 0, 0, 0, 1], source_names=["a", "b"])
    table = open_lengths(tmp_path / "t")
    assert table.num_tokens.tolist() == [4, 0, 5 + 99, 0, 0, 6]
    assert table.num_visual.tolist() == [0, 0, 100, 0, 0, 0]
    assert table.reject.tolist() == [0, 1, 0, 2, 1, 0]
    assert table.reject_reasons == ("broken", "too odd")
    assert (table.shard_names, table.shard_starts.tolist()) == (("s",), [0, 6])
    assert table.exact


def test_a_text_that_the_tokenizer_refuses_costs_its_row(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def picky(path: Path) -> TextCounter:
        def encode(texts: Sequence[str]) -> Ragged:
            if any("\N{SKULL}" in text for text in texts):
                raise TypeError("TextEncodeInput must be Union[...]")
            return counter.encode_batch(texts)

        counter = load_counter(path)
        return replace(counter, encode_batch=encode)

    texts = ["one", "two \N{SKULL}", "three", "\N{SKULL}", "five"]
    samples = [(sample(f"k{n}", said(text)), {}) for n, text in enumerate(texts)]
    folder = write_sample_folder(tmp_path / "in", [samples])
    whole = measure(folder, tmp_path / "calm", tokenizer=model)
    monkeypatch.setattr(lengthrows, "load_counter", picky)
    found = measure(folder, tmp_path / "out", tokenizer=model)
    manifest = open_manifest(tmp_path / "out")
    assert (manifest.num_kept, manifest.skipped) == (3, {"refused by the tokenizer": 2})
    (rejects,) = (tmp_path / "out" / "rejects").iterdir()
    assert '"k1"' in rejects.read_text() and "TextEncodeInput" in rejects.read_text()
    assert found.reject.tolist() == [0, 1, 0, 1, 0]
    assert found.num_tokens.tolist() == (whole.num_tokens * (found.reject == 0)).tolist()


def test_one_guess_or_estimate_marks_the_table() -> None:
    for add in (
        lambda rows: rows.add_written(Written("a", (), False)),
        lambda rows: rows.add_estimate(TokenCount(3, 0, 0)),
    ):
        rows = LengthRows(LETTERS)
        rows.add_written(Written("abc", (), True))
        assert rows.exact
        add(rows)
        assert not rows.exact
