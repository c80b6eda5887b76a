"""Local room for what a folder in an object store needs while it is being made: unfinished files.

`$SHARDMILL_SCRATCH`, or else the system's temporary folder. A large, fast local disk is best; a
worker needs there what its unit writes, and what waits to be uploaded.
"""

from __future__ import annotations

import os
import stat
import tempfile
from hashlib import blake2b
from pathlib import Path

from shardmill.errors import ConfigError

VARIABLE = "SHARDMILL_SCRATCH"


def scratch_root() -> Path:
    """Return the folder of everything that is kept locally for stores."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else _own_folder(Path(tempfile.gettempdir()))


def _own_folder(shared: Path) -> Path:
    """Return a folder of this user alone in one that all users share."""
    folder = shared / f"shardmill-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    # What lies here is believed, so nobody else may have put it there.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise ConfigError(f"{folder} is not ours alone: set {VARIABLE} to a folder of your own")
    return folder


def scratch_dir(url: str) -> Path:
    """Return the folder for one folder of a store."""
    return scratch_root() / "drafts" / blake2b(url.encode(), digest_size=8).hexdigest()
