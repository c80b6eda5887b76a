"""One family of errors: a message says what was found, where, and what to do.

No message holds a secret: every text of an error, an event, a failure or a reject goes through
`mask`, which leaves out what stands in a url for keys.

Optional packages are imported where they are used (`need`); what a stage will need is checked
before its workers start (`check_packages`). One that is missing, or older than pyproject.toml asks
for, is told with the extra that brings it.

`foreign` is the gate at which other people's code meets one sample.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
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
    """Optional packages that are needed are not installed, or are too old."""


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
    package = package_of(module)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise MissingExtra(_told({package: None}, extra)) from error
        raise
    _check_floor(package)
    return found


def check_packages(packages: Iterable[str]) -> None:
    """Raise `MissingExtra` that names all of these packages which are missing or too old."""
    faults = {}
    for name in dict.fromkeys(packages):
        found = installed(name) if find_spec(_MODULES.get(name, name)) else None
        floor = requirements()[name].floor if name in requirements() else "0"
        if found is None or numbers_of(found) < numbers_of(floor):
            faults[name] = found
    if faults:
        raise MissingExtra(_told(faults))


def missing_extra(error: BaseException) -> MissingExtra | None:
    """Return what to install if an import failed because an optional package is not there."""
    name = package_of(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return MissingExtra(_told({name: None})) if name in requirements() else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """The oldest version of a package that works, and the extras of which it is a part."""

    floor: str
    extras: tuple[str, ...]


# "av>=17; extra == 'video'" is av, 17 and video.
_REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[.*?\])?(?:>=([\w.]+))?.*?(?:; *extra *== *['\"](\w+)['\"])?$"
)
_PACKAGES = {"PIL": "pillow", "yaml": "pyyaml"}
_MODULES = {package: module for module, package in _PACKAGES.items()}


@cache
def requirements() -> Mapping[str, Requirement]:
    """Return what pyproject.toml says of each optional package, as this installation has it."""
    from importlib import metadata  # takes as long as all of shardmill

    found: dict[str, Requirement] = {}
    try:
        lines = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:  # the sources alone, not installed
        return found
    for parts in filter(None, map(_REQUIREMENT.match, lines)):
        if parts[3] and parts[1] != PACKAGE:
            before = found.get(parts[1].lower(), Requirement("0", ()))
            floor = max(before.floor, parts[2] or "0", key=numbers_of)
            found[parts[1].lower()] = Requirement(floor, (*before.extras, parts[3]))
    return found


def package_of(module: str) -> str:
    """Return the name under which a module's package is installed."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


def numbers_of(version: str) -> tuple[int, ...]:
    """'2.10.0rc1' -> (2, 10, 0): enough to compare with a floor."""
    return tuple(int(part) for part in re.findall(r"(?:^|\.)(\d+)", version))


def installed(package: str) -> str | None:
    """Return the version of a package that is installed, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _check_floor(package: str) -> None:
    if installed(package) is not None:
        check_packages([package])


def _told(faults: Mapping[str, str | None], extra: str = "") -> str:
    """Return which packages lack, what is there of them, and the fewest extras that bring them."""
    words, known = [], requirements()
    for name, found in faults.items():
        floor = f" {known[name].floor} or later" if name in known else ""
        words.append(f"{name}{floor} ({f'{found} is' if found else 'not'} installed)")
    holders = [set(known[name].extras) if name in known else {extra} for name in faults]
    # The one extra that has them all, else for each the smallest that has it.
    sizes = Counter(extra for one in known.values() for extra in one.extras)
    shared = set.intersection(*holders)
    choices = [shared] if shared else holders
    chosen = {min(one, key=lambda extra: (sizes[extra], extra)) for one in choices}
    wanted = ",".join(sorted(chosen))
    return f"this needs {', '.join(words)}: pip install '{PACKAGE}[{wanted}]'"


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
