"""The system's refusals to read or write an output folder, as errors that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardmill.errors import ShardmillError, StoreError
from shardmill.io.receipts import Ledger
from shardmill.run.job import is_fatal


@contextmanager
def naming(ledger: Ledger) -> Iterator[None]:
    """Turn the system's refusal to read or write our folder into an error that names it."""
    try:
        yield
    except StoreError:
        raise  # it names the object, and says what to do
    except OSError as error:
        ours = is_fatal(error) or str(error.filename).startswith(str(ledger.out_dir))
        if not ours:
            raise
        raise ShardmillError(
            f"cannot write to {ledger.out_dir}: {error.strerror}. Free some space or get the right "
            "to write there, and run the same command again; or name another folder"
        ) from error
