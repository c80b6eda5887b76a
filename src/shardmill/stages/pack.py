"""Pack: the packs of a plan become shards on disk, in the order in which they are trained.

"megatron" writes token shards: `.bin` and `.idx` in which each pack is a document and its samples
are the sequences, with the spans beside them. "tar" writes WebDataset tars, for each pack:

    K.json    {"input_ids", "loss_mask", "lengths", "keys", "image", "media"}
    K-0.jpg   the images and videos, if the folder of samples is given; "image" lists 0, 1, ...

`lengths` are those of the documents, in order; `media` says where the tokens of each medium lie,
and how many delimiters stand before and after them. Every document keeps its own begin and end
tokens, unless `one_bos` names the begin token that only the first one of a pack is to have. The
tokens written are the tokens planned, or the unit fails.

With `text`, the JSON also has "text", what each document says, as Video-Data-Pipeline writes it:
"<s>", turns with line breaks between them, "</s>" behind each answer, and placeholders by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import orjson
import xxhash

from shardmill import humanize
from shardmill.errors import ConfigError, StaleError, UnitFailed
from shardmill.formats.packed import cut_document
from shardmill.model.codec import Plain
from shardmill.model.manifest import shards_digest
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.sample import said_in_turns
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.model.tokenrow import MediaSpan, TokenRow, cut_row
from shardmill.packing.build import BuildSpec, Pack, as_pack, build_pack
from shardmill.packing.order import EpochOrder
from shardmill.shards.arrays import read_format
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_plan
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tar.index import IndexedTar
from shardmill.shards.tar.write import Content
from shardmill.shards.tokens.shard import TokenDataset, check_plan, open_tokens, token_lengths
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.inputs import check_numbers, identities_of
from shardmill.tokens.text.tokenizer import files_checksum

# What the tars of Video-Data-Pipeline hold, which come in the order of its samples.
PRESETS: Mapping[str | None, Mapping[str, Any]] = {
    None: {"format": "megatron", "order": "trained", "one_bos": None, "text": False},
    "vdp": {"format": "tar", "order": "planned", "one_bos": 1, "text": True},
}
# A pack is named by its position in the epoch: "000000041".
NamedPacks: TypeAlias = Iterable[tuple[str, list[TokenRow]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialize:
    """The spec of packs on disk; `seed` and `epoch` choose the order of the packs.

    The order "planned" is that of the plan instead. `samples_dir` is the folder of sample shards
    from which images and texts are copied into tars.
    """

    version: ClassVar[int] = 2
    content: ClassVar[str] = "packs"

    tokens_dir: Path
    plan_path: Path
    format: Literal["megatron", "tar"] = "megatron"
    samples_dir: Path | None = None
    packs_per_shard: int = 1000
    seed: int = 0
    epoch: int = 0
    order: Literal["trained", "planned"] = "trained"
    one_bos: int | None = None
    text: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "packs_per_shard")
        if self.text and self.samples_dir is None:
            raise ConfigError("texts are those of the samples: say with --samples where they are")
        if self.samples_dir is not None and self.format != "tar":
            raise ConfigError("samples_dir is for tars: Megatron's files hold no images")

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        found = {"tokens": (str(self.tokens_dir),), "plan": (str(self.plan_path),)}
        if self.samples_dir is not None:
            found["samples"] = (str(self.samples_dir),)
        return found

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each range of packs; it names plan and tokens by their content."""
        make = f"shardmill plan {self.tokens_dir} packs.plan --capacity N"
        if read_format(self.plan_path) != "plan":
            raise ConfigError(f"{self.plan_path} is no plan: make one by {make}")
        plan = open_plan(self.plan_path)
        tokens = open_manifest(self.tokens_dir)
        opened = open_tokens(self.tokens_dir, tokens)
        try:
            check_plan(plan, opened)
        except StaleError as error:
            raise StaleError(f"{humanize.place(self.plan_path)}: {error}") from None
        if self.format == "tar" and self.samples_dir is None:
            _refuse_media(opened)
        # Not of the plan's file: the same plan written again makes the same packs.
        state = xxhash.xxh3_64(shards_digest(tokens.shards).encode())
        for array in (plan.members, plan.starts, plan.balanced, plan.cut_lengths):
            state.update(np.ascontiguousarray(array).view(np.uint8).data)
        for number, start in enumerate(range(0, len(plan), self.packs_per_shard)):
            stop = min(start + self.packs_per_shard, len(plan))
            made_of: dict[str, Plain] = {"start": start, "stop": stop, "content": state.hexdigest()}
            yield Unit(name=f"{number:05d}", input=made_of, num_samples=stop - start)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Map plan, tokens and samples, once a process."""
        tokens = open_tokens(self.tokens_dir)
        plan, table = open_plan(self.plan_path), token_lengths(self.tokens_dir)
        plan.check_table(table, self.tokens_dir)
        order = EpochOrder(plan, seed=self.seed, epoch=self.epoch)
        samples = None if self.samples_dir is None else open_samples(self.samples_dir)

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            first, last = unit.input["start"], unit.input["stop"]
            assert isinstance(first, int) and isinstance(last, int)
            places = np.arange(first, last)
            numbers = (places if self.order == "planned" else order.packs(places)).tolist()
            packs = (
                (f"{place:09d}", self._opened_once(_rows(plan, table, tokens, pack)))
                for place, pack in enumerate(numbers, first)
            )
            if self.format == "tar":
                write_tar(packs, samples, unit, draft, tally, text=self.text)
            else:
                assert tokens.space is not None, "a plan with packs has rows, and these a space"
                write_tokens(packs, tokens.space, unit, draft, tally)

        yield work

    def _opened_once(self, rows: list[TokenRow]) -> list[TokenRow]:
        """Return the rows of a pack, the first alone with its begin token, if one is named."""
        if self.one_bos is None:
            return rows
        for row in rows:
            if not len(row.ids) or row.ids[0] != self.one_bos or (row.loss[:1, 0] == 0).any():
                raise ConfigError(
                    f"sample {row.key!r} does not begin with the token {self.one_bos}, unlearned: "
                    "leave out --one-bos, or name the begin token of the tokenizer"
                )
        later = (cut_document(row, row.key, 1, len(row.ids)) for row in rows[1:])
        return [rows[0], *(replace(row, continues=False) for row in later)]

    def inputs(self) -> Mapping[str, Any]:
        """Return the contents of the plan and the identities of the folders."""
        samples = [] if self.samples_dir is None else [self.samples_dir]
        plan = {str(self.plan_path): [files_checksum([self.plan_path])]}
        return {**plan, **identities_of(self.tokens_dir, *samples)}


def _refuse_media(tokens: TokenDataset) -> None:
    """Raise `ConfigError` if rows have places for images that no tar would hold.

    Codes are the image; only placeholders need its bytes.
    """
    if tokens.space is not None and tokens.space.num_codes:
        return
    for number in range(len(tokens.entries)):
        shard = tokens.shard(number)
        has_media = shard.num_visual > 0
        if has_media.any():
            raise ConfigError(
                f"{shard.path}: {shard.keys[int(np.argmax(has_media))]!r} has images or videos, "
                "which a tar of packs holds: say with --samples where they are"
            )


def _rows(plan: PackPlan, table: LengthTable, tokens: TokenDataset, pack: int) -> list[TokenRow]:
    numbers = plan[pack]
    planned = plan.lengths_of(numbers, table).tolist()
    rows = [cut_row(tokens[number], n) for number, n in zip(numbers.tolist(), planned)]
    if [len(row.ids) for row in rows] != planned:
        raise UnitFailed(f"pack {pack} has other lengths than planned: {planned}")
    return rows


def write_tokens(
    packs: NamedPacks, space: TokenSpace, unit: Unit, draft: Draft, tally: Tally
) -> None:
    """Write packs as one token shard."""
    about = {"packs": True, "first": unit.input["start"]}
    with TokenWriter(lambda role: draft.file(unit.name, role), space, about) as writer:
        for _, rows in packs:
            for row in as_pack(rows):
                with tally.sample(row.key):
                    writer.append(row)
            tally.count("packs")
    draft.finish(unit.name, num_samples=writer.num_rows)


def write_tar(
    packs: NamedPacks,
    samples: SampleDataset | None,
    unit: Unit,
    draft: Draft,
    tally: Tally,
    *,
    text: bool = False,
) -> None:
    """Write packs as one tar, with the media of `samples` if given."""
    tar_path, index_path = (draft.file(unit.name, role) for role in ("tar", "idx"))
    with IndexedTar(tar_path, index_path) as tar:
        for key, rows in packs:
            with tally.sample(key):
                members = _members(build_pack(rows, BuildSpec()), rows, samples, text)
                tar.add(key, members, "dashed")
    draft.finish(unit.name, num_samples=len(tar.rows))


def _members(
    pack: Pack, rows: Sequence[TokenRow], samples: SampleDataset | None, text: bool
) -> list[tuple[str, Content]]:
    media = [] if samples is None else _media(rows, samples)
    said = {"text": _texts(rows, samples)} if text and samples is not None else {}
    content = {
        "input_ids": pack.input_ids,
        "loss_mask": pack.loss_mask.astype(np.uint8),
        "lengths": pack.layout.lengths,
        "keys": pack.keys,
        "image": [ext.partition(".")[0] for ext, _ in media],
        "media": [
            {
                "name": medium.span.name,
                "kind": medium.span.kind,
                "document": medium.document,
                "position": medium.span.position,
                "num_tokens": medium.span.num_tokens,
                "grid": medium.span.grid,
                "before": medium.span.before,
                "after": medium.span.after,
            }
            for medium in pack.media
        ],
        **said,
    }
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    return [("json", orjson.dumps(content, option=options)), *media]


def _texts(rows: Sequence[TokenRow], samples: SampleDataset) -> list[str]:
    """Return what each document says; media are their placeholders."""
    found = []
    for row, number in zip(rows, samples.find_behind([row.key for row in rows]).tolist()):
        if number < 0:
            raise ConfigError(f"sample {row.key!r} is not in {samples.folder}")
        show = (_placeholders(span) for span in row.media)
        turns = said_in_turns(samples[number].document, lambda _, show=show: next(show))  # type: ignore[misc]
        ended = [said + ("</s>" if role == "assistant" else "") for role, said in turns]
        found.append("<s>" + "\n".join(ended))
    return found


def _placeholders(span: MediaSpan) -> str:
    return f"<im_start>{'<im_patch>' * span.num_tokens}<im_end>"


def _media(rows: Sequence[TokenRow], samples: SampleDataset) -> list[tuple[str, Content]]:
    rows = [row for row in rows if row.media]
    numbers = samples.find_behind([row.key for row in rows])
    found: list[tuple[str, Content]] = []
    for row, number in zip(rows, numbers.tolist()):
        if number < 0:
            raise ConfigError(f"sample {row.key!r} is not in {samples.folder}")
        raw = samples.raw(number)
        for span in row.media:
            if span.name not in raw:
                raise ConfigError(f"sample {row.key!r} has no medium {span.name!r}")
            found.append((f"{len(found)}.{span.name.rpartition('.')[2]}", raw[span.name]))
    return found
