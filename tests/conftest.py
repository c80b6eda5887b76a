"""Makes tests/support importable, also for the worker processes that tests start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
