"""Local room for what a folder in an object store needs while it is being made: unfinished files.

`$SHARDMILL_SCRATCH`, or else the system's temporary folder. A large, fast local disk is best; a
worker needs there what its unit writes, and what waits to be uploaded.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import blake2b
from pathlib import Path

VARIABLE = "SHARDMILL_SCRATCH"


def scratch_root() -> Path:
    """Return the folder of everything that is kept locally for stores, of this user only."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"shardmill-{os.getuid()}"


def scratch_dir(url: str) -> Path:
    """Return the folder for one folder of a store."""
    return scratch_root() / "drafts" / blake2b(url.encode(), digest_size=8).hexdigest()
