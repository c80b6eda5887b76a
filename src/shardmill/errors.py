"""One family of errors: a message says what was found, where, and what to do.

No message holds a secret: every text of an error, an event, a failure or a reject goes through
`mask`, which leaves out what stands in a url for keys.

Optional packages, imported where they are used; a missing one says what to install. `foreign` is
the gate at which other people's code meets one sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

ADDRESS = re.compile(r" (?:at|@) 0x[0-9a-fA-F]{4,}")
MAX_DETAIL = 300
PACKAGE = __name__.partition(".")[0]


def without_addresses(text: str) -> str:
    """Return a text that quotes objects, '<BytesIO object at 0x7f3a>', as every run says it."""
    return ADDRESS.sub("", text)


# "https://user:password@host/name?query#fragment": the user, the name and the query of a url.
_URL = re.compile(
    r"\b([a-z][a-z0-9+.-]{0,20}://)(?:([^\s/?#'\"<>]*)@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?",
    re.IGNORECASE,
)
# A parameter that is a secret, or says whose it is: X-Amz-Signature=..., sig=..., token=...
SECRET = re.compile(
    r"(?<![A-Za-z0-9])((?:x-(?:amz|goog|oss|tos|cos)-[\w-]{1,40}|[\w-]{0,40}(?:signature|token|secret"
    r"|password|passwd|credential|access_?key(?:_?id)?|api_?key|account_?key)|sig|pwd|auth)"
    r"(?:=|%3d))[^&\s'\"<>]+",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """Return a text in which urls have no user, password or query, and secrets are '***'."""
    if "://" in text:
        text = _URL.sub(_plain, text)
    return SECRET.sub(r"\1***", text) if "=" in text or "%" in text else text


def _plain(found: re.Match[str]) -> str:
    scheme, user, name = found.groups()
    # abfs://container@account names a container; whatever else stands there is a credential.
    is_name = user and ":" not in user and scheme.lower() in ("abfs://", "abfss://")
    return f"{scheme}{user}@{name}" if is_name else f"{scheme}{name}"


def near(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'pair'?" for the name among `known` that is most like one, or ''."""
    from difflib import get_close_matches  # where there is a mistake, and not before

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class ShardmillError(Exception):
    """The root of everything that shardmill raises on purpose.

    `exit_code` is how a command ends that meets it; `hint` is what to type, if that is not said.
    """

    exit_code: ClassVar[int] = 2
    hint: ClassVar[str] = ""

    def __init__(self, *args: object) -> None:
        super().__init__(*(mask(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(ShardmillError):
    """A setting that cannot be: an unknown name, a wrong type, a value out of range."""


class MissingExtra(ConfigError):
    """An optional package that this command needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}: install it with pip install 'shardmill[{extra}]'"
        )


class FormatError(ShardmillError):
    """A file is not what it should be; the message names file, member and byte offset."""

    def __init__(
        self, problem: str, *, path: object, member: str | None = None, offset: int | None = None
    ) -> None:
        self.problem, self.path, self.member, self.offset = problem, str(path), member, offset
        where = [str(path)]
        if member is not None:
            where.append(f"member {member!r}")
        if offset is not None:
            where.append(f"at byte {offset}")
        super().__init__(f"{', '.join(where)}: {problem}")


class Damaged(ShardmillError):
    """Stored bytes are not those that were written: a disk, a cable or a memory changed them."""


class SampleError(ShardmillError):
    """One sample cannot be used; it is skipped, counted under `reason` and kept in the rejects.

    A reason is a short constant phrase ("not an image"), so that it can be counted; what differs
    from sample to sample (a path, an offset, a length) belongs in `detail`.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        # Every reject passes here, and what libraries say of a sample often quotes an object.
        self.reason, self.detail = mask(without_addresses(reason)), mask(without_addresses(detail))
        super().__init__(f"{self.reason}: {self.detail}" if detail else self.reason)


class Filtered(SampleError):
    """A sample that the user asked to leave out; it is counted, but not against the skip budget."""


class UnitFailed(ShardmillError):
    """A unit as a whole cannot be done: its counts do not balance, or too much was skipped."""


class TooManySkips(ShardmillError):
    """Every unit is within its budget, but all of them together skipped too much."""


class NothingKept(ShardmillError):
    """All was done, and nothing came of it: no sample passed, or none has what is worked on.

    `report` is that of the run, if there was one; its folder is not completed.
    """

    exit_code = 3
    hint = "if that is right, say --allow-empty (allow_empty=True)"

    def __init__(self, message: str, report: Any = None) -> None:
        self.report = report
        super().__init__(message)


class StaleError(ShardmillError):
    """A folder was made by another spec, other inputs or another version."""


class LockedError(ShardmillError):
    """Another run is working on this folder right now."""


class NotFound(ShardmillError):
    """A request names something that a folder does not hold."""


class StoreError(ShardmillError, OSError):
    """An object store or web server did not do what it was asked to.

    `passing` says that the same request may succeed later: a store that was busy or out of reach.
    Otherwise it refused (a credential, a right, a bucket), as it will refuse everything like it.
    """

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


def need(module: str, *, extra: str) -> Any:
    """Return the imported module, or raise `MissingExtra` that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise MissingExtra(module.split(".")[0], extra) from error
        raise


@contextmanager
def foreign(reason: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn whatever other people's code raises over one sample into a `SampleError`.

        with foreign("broken image"):
            image.load()

    The detail says the exception's type and text. What is not the sample's fault passes unchanged:
    our own errors, a lack of memory, an error with a number of the operating system (a full disk),
    and whatever rises from our own code, which is a bug of ours. `kinds` count as foreign there,
    too: errors of C code, which leaves no trace of itself, or of bytes that we parse ourselves.
    """
    try:
        yield
    except BaseException as error:
        if not _is_foreign(error, kinds):
            raise
        text = " ".join(str(error).split())
        detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise SampleError(reason, f"{detail:.{MAX_DETAIL}}") from error


def _is_foreign(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    if type(error).__name__ == "PanicException":  # of Rust; no Exception, so it would end us
        return True
    if not isinstance(error, Exception) or isinstance(error, ShardmillError | MemoryError):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return isinstance(error, kinds) or name.partition(".")[0] != PACKAGE


@contextmanager
def plugin(used: object, key: str) -> Iterator[None]:
    """Say which plugin failed, at which sample: what it raises by mistake stops the unit."""
    try:
        yield
    except BaseException as error:
        # RecursionError: rows may be nested deeper than Python's stack, whoever walks them.
        if isinstance(error, RecursionError) or not _is_foreign(error, ()):
            raise
        name = f"{type(used).__module__}:{type(used).__qualname__}"
        problem = f"{type(error).__name__}: {without_addresses(str(error))}"
        raise UnitFailed(f"the plugin {name} failed at sample {key!r}: {problem}") from error
