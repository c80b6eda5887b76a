"""`python drive.py '{"stage": ..., "out": ..., ...}'`: a driver process for tests to kill."""

from __future__ import annotations

import json
import sys

from shardmill.model.codec import from_plain
from shardmill.running.lock import LockTiming
from shardmill.running.runner import Interrupted, run_stage


def main() -> None:
    options = json.loads(sys.argv[1])
    timing = LockTiming(beat_s=options.pop("beat_s", 3.0), stale_s=options.pop("stale_s", 30.0))
    part = tuple(options.pop("part", (1, 1)))
    stage = from_plain(options.pop("stage"), trusted=True)
    engine = from_plain(options.pop("on"), trusted=True) if "on" in options else None
    try:
        out = options.pop("out")
        report = run_stage(stage, out, on=engine, part=part, timing=timing, **options)
    except Interrupted as stop:
        sys.stdout.write(f"{stop}\n")
        sys.exit(128 + stop.signal_number)
    sys.stdout.write(json.dumps({"complete": report.complete, "done": report.num_done}))


if __name__ == "__main__":
    main()
