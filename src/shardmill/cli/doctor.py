"""`shardmill doctor`: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.cli.examine import Finding, examine
from shardmill.cli.options import json_option

MARKS = {"good": ("✓", console.GOOD), "missing": ("·", console.HINT), "bad": ("✗", console.BAD)}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@json_option
def doctor(folder: Path, as_json: bool) -> None:
    """Tell what this machine has and lacks, and how to get it.

    FOLDER is where data shall go; by default this one. What is only missing does no harm until it
    is used; the exit code is 1 if something is wrong.
    """
    findings = list(examine(folder))
    wrong = [finding for finding in findings if finding.state == "bad"]
    if as_json:
        console.print_json({"good": not wrong, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings, wrong)
    if wrong:
        click.get_current_context().exit(1)


def _print(findings: list[Finding], wrong: list[Finding]) -> None:
    section = ""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.heading(section)
        mark, colour = MARKS[finding.state]
        console.say(mark, f"{finding.name.ljust(width)}  {finding.found}", colour=colour)
        if finding.todo:
            console.hint(f"{' ' * width}  {finding.todo}")
    click.echo()
    missing = sum(finding.state == "missing" for finding in findings)
    if wrong:
        console.say("✗", f"{wording.plural(len(wrong), 'thing')} to mend", colour=console.BAD)
    else:
        text = f"; {missing} optional missing" if missing else ""
        console.say("✓", f"ready{text}")
