"""`shardmill work JOB`: one task of a job that another command wrote; what schedulers start."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shardmill import humanize
from shardmill.api.values import to_engine
from shardmill.cli import output
from shardmill.cli.options import PlaceType, json_option
from shardmill.cli.report import print_failures, run_to_plain
from shardmill.running.engine import Engine, read_job
from shardmill.running.progress import show_progress
from shardmill.running.task import TaskReport, run_task


@click.command()
@click.argument("job", type=PlaceType(dir_okay=False))
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Worker processes of this task.  [default: the CPUs it may use]",
)
@click.option(
    "--requeue",
    metavar="ENGINE",
    callback=lambda _ctx, _param, text: to_engine(text) if text else None,
    help="If time runs out, ask this engine, such as slurm, for another turn.",
)
@json_option
def work(job: Path, workers: int | None, requeue: Engine | None, as_json: bool) -> None:
    """Work on a job beside other tasks until nothing is left.

    Any number of tasks, on any machines that share the folder of the job, divide its units among
    themselves. They may be started, killed and started again at any time.
    """
    with show_progress(sys.stderr) as on_event:
        report = run_task(read_job(job), workers=workers, on_event=on_event)
    if as_json:
        output.print_json(run_to_plain(report.run) | {"num_left": report.num_left})
    else:
        _print(report)
    if requeue is not None and report.out_of_time and requeue.requeue():
        output.hint("the time is over; the scheduler will give this task another turn")
    if report.run.failures:
        click.get_current_context().exit(1)


def _print(report: TaskReport) -> None:
    done = humanize.plural(report.run.num_done, "unit")
    took = humanize.duration(report.run.seconds)
    if report.run.failures:
        print_failures(report.run)
    elif report.run.complete:
        output.say("✓", f"{report.run.out_dir} is complete; {done} done by this task in {took}")
    else:
        text = f"{done} done in {took}; {humanize.count(report.num_left)} are with others or left"
        output.say("…", text, colour=output.HINT)
