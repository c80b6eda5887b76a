"""Makes tests/support importable, also for the worker processes that tests start."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# A loaded machine is slow now and then; that is no failure of what is tested. The default draws the
# same examples in every run, so that a failure is about the change; `make test-cluster` explores.
for name, repeatable in (("repeatable", True), ("explore", False)):
    settings.register_profile(
        name,
        deadline=None,
        derandomize=repeatable,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

pytest_plugins = ["store_fixtures"]
