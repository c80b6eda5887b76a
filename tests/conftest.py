"""Makes tests/support importable, also for the worker processes that tests start."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# A loaded machine is slow now and then; that is no failure of what is tested.
settings.register_profile(
    "loaded machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("loaded machine")

pytest_plugins = ["store_fixtures"]
