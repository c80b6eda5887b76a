"""`sm.check` and `sm.diff`: whether a folder is what it should be, and how two folders differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from shardmill.api import data
from shardmill.api.running import RunOptions, checked, run_report
from shardmill.api.values import WRITTEN, Place, many, to_path, to_spec, to_texts
from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.machine import count_cpus
from shardmill.model.codec import from_plain
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Stage
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.places import is_stage
from shardmill.stages.diff import FolderDiff, diff_folders

if TYPE_CHECKING:
    from shardmill.formats.format import Reader
    from shardmill.running.progress import RunReport
    from shardmill.stages.check.content import ContentReport, DecodeReport
    from shardmill.stages.check.folder import Verdict
    from shardmill.stages.same import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesReport:
    """How a folder of codes uses its codebook and, if asked for, what images come back from it.

    `outliers` are the images that come back far worse than the others, by their PSNR in dB.
    """

    num_codes: int
    num_dead: int
    perplexity: float
    num_decoded: int | None = None
    psnr: float = 0.0
    outliers: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check found; what it was not asked for is None.

    `verdict` compares bytes, or with `quick` only sizes, with the receipts. `content` says what
    documents, tokens and masks say, `codes` and `decoding` speak of images, `comparison` of the
    `other` place. `dumped` and `lists` are the files that were written, `repaired` is the run that
    made broken units again. `parts` are the reports of all that a folder of several holds; what has
    no receipts (a plan, tokens of others) is read whole, and `problems` says what cannot be.
    """

    path: Path
    quick: bool = False
    verdict: Verdict | None = None
    content: ContentReport | None = None
    codes: CodesReport | None = None
    decoding: DecodeReport | None = None
    other: Path | None = None
    comparison: Comparison | None = None
    dumped: tuple[Path, ...] | None = None
    lists: tuple[Path, ...] | None = None
    repaired: RunReport | None = None
    parts: tuple[CheckReport, ...] | None = None
    problems: tuple[str, ...] | None = None

    @property
    def sound(self) -> bool:
        """Whether all bytes are as they were and say what they must, or are so again."""
        if self.parts is not None:
            return all(part.sound for part in self.parts)
        if self.problems is not None:
            return not self.problems
        if self.comparison is not None:
            return self.comparison.same
        if self.repaired is not None:
            return self.repaired.complete
        assert self.verdict is not None
        broken = self.decoding is not None and self.decoding.num_broken > 0
        faulty = self.content is not None and self.content.num_faults > 0
        return self.verdict.sound and not faulty and not broken


@checked
def check(
    src: Place,
    *,
    quick: bool = False,
    repair: bool = False,
    decode: int = 0,
    same: Place | None = None,
    codes: Place | None = None,
    ignore: str | Sequence[str] = (),
    content: bool | None = None,
    pairs: bool = False,
    max_tokens: int | None = None,
    num_patches: int | None = None,
    space: str | Mapping[str, Any] | None = None,
    dump: Annotated[Place | None, WRITTEN] = None,
    dump_count: int = 8,
    list_tars: bool = False,
    **run: Unpack[RunOptions],
) -> CheckReport:
    """Compare every byte of a folder with its receipts, and look at what its shards say.

    `quick` compares sizes only. `repair` does broken units again. `decode` images are decoded to
    find those that are broken, or whose codes come out badly. `same` compares with another place of
    whatever format, but for the aspects in `ignore`. `content` None looks into everything but
    remote tars. `dump` is a folder for a few samples as text and images; `list_tars` writes the
    lists of tars that WebDataset readers take.

        assert sm.check(tokens).sound
    """
    path = to_path(src)
    if decode < 0:
        raise ConfigError(f"decode must be at least 0, got {decode}")
    if same is not None:
        comparison = _compare(same, src, codes, many(ignore))
        return CheckReport(path=path, other=to_path(same), comparison=comparison)
    if not is_stage(path):
        options = {"repair": repair, "dump": dump is not None, "list_tars": list_tars}
        for name in (name for name, is_given in options.items() if is_given):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{path} is no folder of one stage, which {flag} needs: name one")
        settings = {"quick": quick, "decode": decode, "content": content, "pairs": pairs, **run}
        limits_of = {"max_tokens": max_tokens, "num_patches": num_patches, "space": space}
        return _check_other(path, {**settings, **limits_of})
    from shardmill.stages.check.folder import check_folder
    from shardmill.stages.check.tokens import Limits

    given = run.get("workers")
    workers = count_cpus() if given is None else given
    known = None if space is None else to_spec(space, TokenSpace, where="space")
    verdict = check_folder(path, deep=not quick)
    found: dict[str, Any] = {"path": path, "quick": quick, "verdict": verdict}
    is_finished = (path / "manifest.json").exists()
    if list_tars and not (is_finished and _holds_tars(path)):
        raise ConfigError(f"{path} holds no tars that could be listed")
    if is_finished and not quick and content is not False:
        from shardmill.stages.check.content import check_content

        limits = Limits(
            max_tokens=max_tokens,
            num_patches=num_patches,
            space=known,
            pairs=pairs,
            remote=bool(content),
        )
        found["content"] = check_content(path, limits, workers=workers)
    if verdict.sound:
        opened = data.open(path)
        # Codes are decoded by their own model; images of all else by the decoder of images.
        if isinstance(opened, data.Codes) and not quick:
            found["codes"] = _report_codes(path, decode)
        elif decode and not isinstance(opened, data.Codes):
            from shardmill.stages.check.content import check_decoding

            found["decoding"] = check_decoding(path, decode, workers=workers)
        if dump is not None:
            from shardmill.stages.check.specimens import dump_specimens

            found["dumped"] = tuple(dump_specimens(path, to_path(dump), dump_count, known))
        if list_tars and CheckReport(**found).sound:
            from shardmill.formats.wids import write_shard_list

            found["lists"] = tuple(write_shard_list(path))
    elif repair:
        found["repaired"] = _repair(path, verdict, run)
    return CheckReport(**found)


def _check_other(path: Path, options: Mapping[str, Any]) -> CheckReport:
    """Check all that a folder holds, or read what has no receipts from first byte to last."""
    problems: tuple[str, ...]
    try:
        opened = data.open(path)
        if isinstance(opened, data.Project):
            parts = tuple(_check_part(place, options) for place in opened.places.values())
            return CheckReport(path=path, quick=options["quick"], parts=parts)
        problems = tuple(_unreadable(opened))
    except FormatError as error:
        problems = (str(error),)
    return CheckReport(path=path, quick=options["quick"], problems=problems)


def _check_part(path: Path, options: Mapping[str, Any]) -> CheckReport:
    """Check one of several; what stops its check is its problem, and the others are checked."""
    try:
        return check(path, **options)
    except ShardmillError as error:
        return CheckReport(path=path, quick=options["quick"], problems=(str(error),))


def _unreadable(opened: data.Data[Any]) -> Iterator[str]:
    """Yield what of a plan, a table or the tokens of others cannot be read."""
    if not isinstance(opened, data.Export):
        repr(opened)  # which opens it, and that checks it
        return
    for number, record in enumerate(opened):
        if record.problem is not None:
            yield f"record {number}, {record.key!r}: {record.problem}"


@checked
def diff(before: Place, after: Place) -> FolderDiff:
    """Return which samples, tokens and shards changed from one folder to another.

    Both hold samples, both codes, or both tokens. Indexes and content hashes are read, no media.
    """
    return diff_folders(to_path(before), to_path(after))


def _repair(path: Path, verdict: Verdict, run: RunOptions) -> RunReport:
    from shardmill.running.plan import check_fresh
    from shardmill.stages.check.folder import repair

    record = Ledger(path).read_stage()
    if record is None:
        raise ShardmillError(f"{path} is not a folder of shardmill: it has no stage.json")
    stage = from_plain(record.stage, where=f"{path}/stage.json")
    if not isinstance(stage, Stage):
        raise ConfigError(f"{path}/stage.json names no stage, but {type(stage).__name__}")
    # Before a unit is given up that the inputs of today could not give back.
    check_fresh(Ledger(path), stage)
    repair(verdict)
    # What is broken was within its budget when it was made, and will be again.
    return run_report(stage, path, {**run, "max_skip_rate": 1.0})


def _compare(
    first: Place, second: Place, codes: Place | None, ignored: Sequence[str]
) -> Comparison:
    from shardmill.stages.same import ORDER, compare

    unknown = [aspect for aspect in ignored if aspect not in ORDER]
    if unknown:
        raise ConfigError(f"there is no aspect {unknown[0]!r} to ignore: use {', '.join(ORDER)}")
    ignoring = frozenset(aspect for aspect in ORDER if aspect in ignored)
    places = to_texts([first, second])
    return compare(*_open_both(places, codes), ignoring=ignoring)


def _open_both(places: Sequence[str], codes: Place | None) -> list[Reader]:
    """Open both sides; foreign tokens that do not say their space have that of the other."""
    from shardmill.formats.finder import open_reader

    codes_dir = None if codes is None else str(to_path(codes))
    # Opened twice, since whether one side needs a space is known only when both have been asked.
    spaces = [open_reader(place, codes_dir=codes_dir).token_space() for place in places]
    is_ours = [(Path(place) / "stage.json").exists() for place in places]
    lent = [None if own else spaces[1 - n] for n, own in enumerate(is_ours)]
    return [
        open_reader(place, space=space, codes_dir=codes_dir) for place, space in zip(places, lent)
    ]


def _holds_tars(path: Path) -> bool:
    """Say whether a finished folder holds tars, or indexes of tars elsewhere."""
    manifest = open_manifest(path)
    return manifest.content == "samples" or all("tar" in s.files for s in manifest.shards)


def _report_codes(path: Path, num_decoded: int) -> CodesReport:
    from shardmill.stages.codes import codebook_use, outliers, reconstruct, spread_keys

    use = codebook_use(path)
    counts: dict[str, Any] = {
        "num_codes": len(use.counts),
        "num_dead": use.num_dead,
        "perplexity": round(use.perplexity, 1),
    }
    if not num_decoded:
        return CodesReport(**counts)
    images = list(reconstruct(path, spread_keys(path, num_decoded)))
    return CodesReport(
        **counts,
        num_decoded=len(images),
        psnr=round(sum(image.psnr for image in images) / max(1, len(images)), 2),
        outliers={f"{one.key} {one.medium}": round(one.psnr, 2) for one in outliers(images)},
    )
