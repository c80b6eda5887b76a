"""One call of the front door by a command, and the one report that it prints.

Every verb prints its report through a function `(result, as_json) -> None`; those that run a stage
begin with `print_run`. A recipe prints the same reports, one after the other.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click

from shardmill import humanize
from shardmill.api.data import Codes, Data, Export, Lengths
from shardmill.api.running import RUN_DEFAULTS, RunFailed, RunOptions, run_settings
from shardmill.api.values import to_engine
from shardmill.cli import output
from shardmill.errors import NothingKept
from shardmill.model.manifest import Manifest, group_stats
from shardmill.model.stage import Stage
from shardmill.running.engine import Engine
from shardmill.running.progress import RunReport
from shardmill.running.runner import preview_stage
from shardmill.shards.ledger import Ledger, read_rejects, reject_lists, view_point
from shardmill.storage.path import Home

if TYPE_CHECKING:
    from shardmill.stages.ingest import TakenAs

MAX_LISTED = 5
MAX_COLUMNS = 12
MAX_REJECT_FILES, MAX_REJECTS = 16, 10_000  # read for a hint, of what may be millions
Print = Callable[[Any, bool], None]


@dataclass(frozen=True, slots=True)
class DryRun:
    """A runner that prints what an engine would submit, and ends the command."""

    engine: Engine

    @property
    def is_local(self) -> bool:
        """Whether the engine works on this machine."""
        return self.engine.is_local

    def run(self, stage: Stage, out: Path, options: RunOptions) -> RunReport:
        """Print the preview, and exit."""
        settings = run_settings(options)
        del settings["part"]  # tasks share the units, whichever part a user would do
        output.echo(preview_stage(stage, out, on=self.engine, **settings), nl=False)
        raise click.exceptions.Exit(0)


def call(
    verb: Callable[..., Any],
    *places: Any,
    as_json: bool,
    next_step: str = "",
    report: Print | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Any:
    """Call a verb that runs a stage, print its report, and return what it made.

    Exits with 1 if units failed, with 3 if nothing was kept. `next_step` is the hint that follows
    when the folder is complete.
    """
    if dry_run:
        # The function runs as always, up to the point where it would submit.
        options["on"] = DryRun(to_engine(options["on"]))
    try:
        made = verb(*places, progress=True, **options)
    except (RunFailed, NothingKept) as error:
        print_ended(error, as_json)
        raise click.exceptions.Exit(error.exit_code) from error
    (report or print_data)(made, as_json)
    if next_step and made.complete and not as_json:
        output.hint(next_step)
    return made


def defaults_of(verb: Callable[..., Any]) -> dict[str, Any]:
    """Return context settings that give a command the defaults of the front door's function.

    So they are written once, in its signature, and the help shows them.
    """
    parameters = signature(verb).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        defaults |= RUN_DEFAULTS
    return {"default_map": defaults, "show_default": True}


def choice(verb: Callable[..., Any], name: str) -> click.Choice[str]:
    """Return the choices of an option, which are the literals in the function's signature."""
    # Literal["jpg", "webp"], or one that may be None.
    hint = get_type_hints(verb)[name]
    found = [value for one in (hint, *get_args(hint)) for value in get_args(one)]
    return click.Choice([value for value in found if isinstance(value, str)])


def print_data(made: Data[Any], as_json: bool) -> None:
    """Print the run that made a folder."""
    assert made.report is not None
    print_run(made.report, as_json)


def print_frames(made: Data[Any], as_json: bool) -> None:
    """Print the run, and of how many videos the times were corrected, and why."""
    from shardmill.stages.frames import CORRECTED

    print_data(made, as_json)
    if made.complete and not as_json:
        corrected = group_stats(made.manifest.stats).get(CORRECTED, {})
        output.facts(("corrected", f"{count:,} x {what}") for what, count in corrected.items())


def print_codes(made: Codes, as_json: bool) -> None:
    """Print the run, how images became pixels, and which share of codes equals those of fp32."""
    from shardmill.stages.codes import COMPARED, EQUAL, describe_pixels

    print_data(made, as_json)
    pixels = None if as_json else describe_pixels(made.path)
    if pixels is not None:
        take = getattr(made.spec.tokenizer, "take", None)
        output.facts([("pixels", pixels), *([("weights", take)] if take else [])])
    compared = made.manifest.stats.get(COMPARED, 0) if made.complete else 0
    if compared and not as_json:
        share = made.manifest.stats.get(EQUAL, 0) / compared
        text = f"{100 * share:.2f} % of {humanize.count(compared)} codes are those of fp32"
        output.facts([(made.spec.precision, text)])


def print_lengths(made: Lengths, as_json: bool) -> None:
    """Print the run, and how long the samples are."""
    print_data(made, as_json)
    if as_json or not made.complete or not made.counts.num_kept:
        return
    table = made.table
    kept = table.num_tokens[table.reject == 0].astype("i8")
    kept.sort()
    visual = int(table.num_visual.sum(dtype="i8"))
    median, late, longest = kept[len(kept) // 2], kept[len(kept) * 99 // 100], kept[-1]
    tokens = f"{humanize.count(int(kept.sum()))}, {humanize.count(visual)} of them visual"
    output.facts(
        [
            ("tokens", tokens),
            ("length", f"median {median:,}, 99 % up to {late:,}, longest {longest:,}"),
            ("counts", "exact" if table.exact else "estimates: the planner leaves headroom"),
        ]
    )


def print_export(made: Export, as_json: bool) -> None:
    """Print the run, and what of the data is not in the export."""
    assert made.report is not None
    left_out = made.spec.left_out if made.complete else ()
    print_run(made.report, as_json, left_out=left_out)
    if left_out and not as_json:
        output.facts([("left out", ", ".join(left_out))])


def print_removal(made: Data[Any], as_json: bool) -> None:
    """Print the run, what was rewritten, and which folders were made from the one that it read."""
    from shardmill.stages.remove import SUMMARY_NAME
    from shardmill.storage.text import read_json

    print_data(made, as_json)
    if as_json or not made.complete:
        return
    summary = read_json(made.path / SUMMARY_NAME)
    rewritten, linked = summary["shards_rewritten"], summary["shards_linked"]
    shards = f"{humanize.plural(rewritten, 'shard')} written again, {humanize.count(linked)} linked"
    rows, missing = [("shards", shards)], summary["not_there"]
    if missing:
        some = ", ".join(missing[:MAX_LISTED]) + (", ..." if len(missing) > MAX_LISTED else "")
        rows.append(("not there", f"{humanize.plural(len(missing), 'key')}: {some}"))
    output.facts(rows)
    _print_downstream(made.spec.input_dir, made.path)


def _print_downstream(folder: Path, out: Path) -> None:
    from shardmill.stages.remove import LEVELS_BELOW, MAX_FOLDERS, find_downstream

    found = find_downstream(folder)
    for path in found.folders:
        if path != out.resolve():
            name = path.relative_to(found.looked_in)
            output.hint(f"{name} was made from {humanize.place(folder)}: remove them there too")
    part = "" if found.saw_all else f", of which {MAX_FOLDERS:,} folders were seen"
    where = f"{found.looked_in} and {LEVELS_BELOW} levels below{part}"
    output.facts([("made from it", f"looked for in {where}; not elsewhere")])


def print_run(report: RunReport, as_json: bool, **more: Any) -> None:
    """Print how a run ended: complete, in part, or failed, and the counts; JSON says `more`."""
    if as_json:
        output.print_json({**run_to_plain(report), **more})
    else:
        _print_end(report)


def print_ended(error: RunFailed | NothingKept, as_json: bool) -> None:
    """Print the report of a run that did not end well, and why."""
    if as_json:
        plain = {} if error.report is None else run_to_plain(error.report)
        output.print_json({**plain, "error": output.error_to_plain(error)})
    elif isinstance(error, RunFailed):
        print_failures(error.report)
    else:
        output.say("✗", str(error), colour=output.BAD)
        if error.report is not None:
            _print_not_allowed(error.report)
        output.hint(error.hint)


def run_to_plain(report: RunReport) -> dict[str, Any]:
    """Return what `--json` prints of a run: the folder if it is complete, and what was done now."""
    from shardmill.stages.ingest import taken_as  # a long way to load for a command's help

    manifest = report.manifest
    taken = None if manifest is None else taken_as(manifest.stage, manifest.stats)
    return {
        "path": str(report.out_dir),
        "complete": report.complete,
        "num_in": None if manifest is None else manifest.num_in,
        "num_kept": None if manifest is None else manifest.num_kept,
        "num_shards": None if manifest is None else len(manifest.shards),
        "num_bytes": None if manifest is None else manifest.num_bytes,
        "skipped": None if manifest is None else dict(manifest.skipped),
        "failures": [{"unit": unit, "message": message} for unit, message in report.failures],
        **({} if taken is None else asdict(taken)),
        "run": {
            "num_units": report.num_units,
            "num_done_before": report.num_done_before,
            "num_done": report.num_done,
            "num_in": report.num_in,
            "num_kept": report.num_kept,
            "num_bytes": report.num_bytes,
            "seconds": round(report.seconds, 3),
        },
    }


def print_failures(report: RunReport) -> None:
    """Print which units failed and why."""
    count = humanize.plural(len(report.failures), "unit")
    output.say("✗", f"{count} failed, {report.num_done} done now", colour=output.BAD)
    output.listed((cause.describe(report.out_dir) for cause in report.causes()), MAX_LISTED)
    output.hint("run the same command again to try those units")


def _print_end(report: RunReport) -> None:
    out = humanize.place(report.out_dir)
    if report.manifest is None:
        done = humanize.plural(report.num_done, "unit")
        text = f"this part is done: {done}; others are not yet"
        others = f"{out} is not complete yet; others work on it"
        output.say("…", text if report.num_done else others, colour=output.HINT)
        output.hint(f"shardmill status {out}")
    elif report.num_done == 0:
        output.say("✓", f"nothing to do: {out} is complete")
        _print_counts(report)
    else:
        rate = report.num_in / max(report.seconds, 1e-9)
        took = humanize.duration(report.seconds)
        output.say("✓", f"{out} is complete: {took}, {humanize.count(rate)} samples/s")
        _print_counts(report)


def _print_counts(report: RunReport) -> None:
    from shardmill.stages.ingest import taken_as

    manifest = report.manifest
    assert manifest is not None
    taken = taken_as(manifest.stage, manifest.stats)
    shards = humanize.plural(len(manifest.shards), "shard")
    size = humanize.size(manifest.num_bytes)
    output.facts(
        [
            ("in", humanize.plural(manifest.num_in, "sample")),
            ("kept", f"{humanize.count(manifest.num_kept)} in {shards}, {size}"),
            *(
                ("skipped", f"{humanize.count(n)} x {reason}")
                for reason, n in sorted(manifest.skipped.items(), key=lambda item: -item[1])
            ),
            *(
                ("passed over", f"{humanize.count(n)} x {kind}")
                for kind, n in group_stats(manifest.stats).get("passed over", {}).items()
            ),
            *(() if taken is None else _taken_facts(taken, manifest)),
        ]
    )
    _print_not_allowed(report)


def _taken_facts(taken: TakenAs, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the shape of rows, and which columns are used for what, which for nothing."""
    yield "shape", f"{taken.shape}: {taken.why}"
    for title, is_extra in (("uses", False), ("extra", True)):
        listed = [
            name if is_extra else f"{name} as {use}"
            for name, uses in taken.columns.items()
            for use in uses
            if (use == "extra") == is_extra
        ]
        more = f" and {len(listed) - MAX_COLUMNS} more" if len(listed) > MAX_COLUMNS else ""
        if listed:
            yield title, ", ".join(listed[:MAX_COLUMNS]) + more
    if num_bare := manifest.stats.get("missing|text", 0):
        yield "no text", f"{humanize.plural(num_bare, 'sample')} without text"


def _print_not_allowed(report: RunReport) -> None:
    """Print what to type so that rows may read the places that most of the refused ones name."""
    skipped = {} if report.manifest is None else report.manifest.skipped
    if not any(reason.endswith("not allowed") for reason in skipped):
        return
    places = Counter(islice(_refused_places(report.out_dir), MAX_REJECTS))
    shown = (
        p if "://" in p else humanize.place(Path(p)) for p, _ in places.most_common(MAX_LISTED)
    )
    flags = " ".join(f"--allow {shlex.quote(place)}" for place in shown)
    output.hint(f"if you trust these rows, run it into another folder with {flags}")


def _refused_places(out: Path) -> Iterator[str]:
    """Yield the place to allow of each reject; they have it as seen from their unit's input."""
    ledger = Ledger(out)
    record, units = ledger.read_stage(), {unit.name: unit for unit in ledger.read_units()}
    for name, path in islice(reject_lists(out).items(), MAX_REJECT_FILES):
        if record is not None and name in units:
            home = Home(view_point(record.stage, units[name]))
            details = (r.detail for r in read_rejects(path) if r.reason.endswith("not allowed"))
            yield from (home.locate(d.rpartition("--allow ")[2].strip("'")) for d in details)
