"""The clients of object stores: one a bucket and process, patient, set up by the environment.

    s3://  gs://  az://   the variables of their own tools (AWS_*, GOOGLE_*, AZURE_*)
    oss://  tos://        spoken to by S3's protocol, with OSS_* and TOS_*
    http(s)://            reading only, no credentials

A request that meets a 5xx, a throttled answer, a time-out or a broken connection is sent again by
the client, after a pause that doubles and is jittered, until `patience_s` has gone by. What the
client does not repeat by itself (an answer that breaks off while it is read) is repeated here.

What a store refuses becomes an error that says what to do. The client's own messages hold whole
requests; of those only the status and the store's code for the problem are taken over, so that no
signature or token can end in a log.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shardmill.errors import ConfigError, StoreError, need
from shardmill.storage.url import plain_url, split_url

VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "oss": "OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET and OSS_ENDPOINT",
    "tos": "TOS_ACCESS_KEY, TOS_SECRET_KEY, TOS_REGION and TOS_ENDPOINT",
}
ALIASES = {"s3a": "s3", "abfs": "az", "abfss": "az"}

EXPIRED = "its credential has expired: get a new one and run the same command again"
UNKNOWN_KEY = "the store does not know this credential, or its secret is wrong: check {variables}"
REGION = "the bucket is in another region or behind another endpoint: check {variables}"
NO_BUCKET = "there is no such bucket: make it, or correct its name"
CLOCK = "the clock of this machine is wrong: set it, and run the same command again"
FORBIDDEN = "no permission: ask for the right to {verb} there, or check {variables}"
NO_KEY = "no credential: set {variables} in the environment"
BUSY = "the store does not answer{status}: run the same command again later, it goes on"

PROBLEMS = {
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "RequestExpired": EXPIRED,
    "InvalidToken": EXPIRED,
    "InvalidAccessKeyId": UNKNOWN_KEY,
    "SignatureDoesNotMatch": UNKNOWN_KEY,
    "PermanentRedirect": REGION,
    "AuthorizationHeaderMalformed": REGION,
    "IllegalLocationConstraintException": REGION,
    "NoSuchBucket": NO_BUCKET,
    "RequestTimeTooSkewed": CLOCK,
    "AccessDenied": FORBIDDEN,
}
STATUSES = {301: REGION, 307: REGION, 401: NO_KEY, 403: FORBIDDEN}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
# What the client says by itself: a redirect that leads nowhere, nobody who gives a credential.
_WORDS = (
    (re.compile(r"incorrectly configured region"), REGION),
    (re.compile(r"169\.254\.|metadata\.google|credential", re.IGNORECASE), NO_KEY),
)


class NotOffered(StoreError):
    """The store, by its kind or its settings, has no such request: a put on a condition, mostly."""

    def __init__(self, url: str, *, verb: str) -> None:
        super().__init__(
            f"cannot {verb} {plain_url(url)}: the store does not offer it", passing=False
        )


def explain(error: Exception, url: str, *, verb: str) -> OSError:
    """Return the error to raise in place of the client's; `verb` is "read" or "write"."""
    text = str(error)
    code, status = _found(_CODE, text), int(_found(_STATUS, text) or 0)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, "does not exist", plain_url(url))
    problem = PROBLEMS.get(code) or STATUSES.get(status)
    if problem is None and not status:
        problem = next((said for words, said in _WORDS if words.search(text)), None)
    passing = problem is None
    if problem is None:
        problem = BUSY if _is_busy(status) else "the store refused{status}"
        passing = _is_busy(status)
    what = problem.format(verb=verb, variables=_variables(url), status=_said(code, status))
    return StoreError(f"cannot {verb} {plain_url(url)}: {what}", passing=passing)


def was_interrupted(error: Exception) -> bool:
    """Say whether a connection broke where the client does not ask again by itself.

    That is while an answer is read, and for requests that it does not know to be repeatable, such
    as deleting several objects. If it asked again, it says ", after 3 retries".
    """
    said = str(error).partition("\n")[0]
    return "HTTP error" in said and " retries, " not in said and _STATUS.search(said) is None


def _is_busy(status: int) -> bool:
    return status == 0 or status == 429 or status >= 500


def _said(code: str, status: int) -> str:
    said = ", ".join(str(part) for part in (status, code) if part)
    return f" ({said})" if said else ""


def _variables(url: str) -> str:
    scheme = url.partition("://")[0]
    return VARIABLES.get(ALIASES.get(scheme, scheme), "the environment")


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


T = TypeVar("T")

PATIENCE_VARIABLE = "SHARDMILL_STORE_PATIENCE_S"
PATIENCE_S = 120.0
NUM_TRIES = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CLIENT_OPTIONS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "300s"}

# variable -> setting of the client, for stores that speak S3's protocol under another name
COMPATIBLE: Mapping[str, Mapping[str, str]] = {
    "oss": {
        "OSS_ENDPOINT": "endpoint",
        "OSS_REGION": "region",
        "OSS_ACCESS_KEY_ID": "access_key_id",
        "OSS_ACCESS_KEY_SECRET": "secret_access_key",
        "OSS_SESSION_TOKEN": "token",
    },
    "tos": {
        "TOS_ENDPOINT": "endpoint",
        "TOS_REGION": "region",
        "TOS_ACCESS_KEY": "access_key_id",
        "TOS_SECRET_KEY": "secret_access_key",
        "TOS_SECURITY_TOKEN": "token",
    },
}
# What decides about a client; another value makes another client.
PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "OSS_", "TOS_", PATIENCE_VARIABLE)


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a store: the client of its bucket, its path in it, and its url for messages."""

    client: Any
    path: str
    url: str


_users: set[int] = set()


def is_in_use() -> bool:
    """Say whether this process talks to stores, so that it must not fork workers that do."""
    return os.getpid() in _users


def find_object(url: str) -> Object:
    """Return the object that a url names, which need not exist."""
    place = split_url(url)
    _users.add(os.getpid())
    if len(_users) > 1:
        # The client's threads do not survive a fork, and their locks may be held for ever.
        raise ConfigError(
            f"{plain_url(url)}: this process was forked from one that talks to stores, which does "
            "not work: start workers with multiprocessing_context='spawn'"
        )
    return Object(_client(place.root, _settings()), place.path, url)


def call(target: Object, method: str, *, verb: str = "read", **options: Any) -> Any:
    """Call a function of the client on an object; its errors become ours."""
    obstore = need("obstore", extra="remote")
    function = getattr(obstore, method)
    return patient(lambda: function(target.client, target.path, **options), target.url, verb=verb)


def patient(ask: Callable[[], T], url: str, *, verb: str) -> T:
    """Return what `ask` returns; an answer that breaks off is asked for again, a few times."""
    obstore = need("obstore", extra="remote")
    for tries in range(1, NUM_TRIES + 1):
        try:
            return ask()
        except obstore.exceptions.AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, "exists already", plain_url(url)) from None
        except obstore.exceptions.PreconditionError:
            raise BlockingIOError(errno.EAGAIN, "was changed", plain_url(url)) from None
        except (NotImplementedError, obstore.exceptions.NotSupportedError):
            raise NotOffered(url, verb=verb) from None
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            if tries == NUM_TRIES or not was_interrupted(error):
                # The client's message, which holds whole requests, must not be shown with ours.
                raise explain(error, url, verb=verb) from None
        time.sleep(random.uniform(0, FIRST_PAUSE_S * 2**tries))
    raise AssertionError("the last try returns or raises")


def _settings() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if name.startswith(PREFIXES))


@lru_cache(maxsize=64)
def _client(root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    store = need("obstore.store", extra="remote")
    scheme, _, bucket = root.partition("://")
    options = _options(scheme, bucket)
    retry = {"retry_config": _retry(), "client_options": _client_options(options, root)}
    try:
        if scheme in COMPATIBLE:
            return store.S3Store(bucket, **options, **retry)
        return store.from_url(root, **options, **retry)
    except need("obstore", extra="remote").exceptions.BaseError as error:
        raise ConfigError(f"{root} cannot be used: {str(error).splitlines()[0]}") from None


def _options(scheme: str, bucket: str) -> dict[str, Any]:
    if scheme in ("s3", "s3a"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return {"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}
    if scheme not in COMPATIBLE:
        return {}
    names = COMPATIBLE[scheme]
    options: dict[str, Any] = {names[n]: os.environ[n] for n in names if os.environ.get(n)}
    if "endpoint" not in options:
        raise ConfigError(f"{scheme}://{bucket} needs {scheme.upper()}_ENDPOINT in the environment")
    # They have no If-None-Match: the client then says so, and we look before we put.
    options["conditional_put"] = "disabled"
    return {**options, **_addressing(str(options["endpoint"]), bucket)}


def _addressing(endpoint: str, bucket: str) -> dict[str, Any]:
    """Name the bucket in the host, as these stores want it; a server on loopback has one host."""
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if parts.hostname in LOOPBACK:
        return {"endpoint": parts.geturl(), "virtual_hosted_style_request": False}
    host = f"{parts.scheme}://{bucket}.{parts.netloc}"
    return {"endpoint": host, "virtual_hosted_style_request": True}


def _client_options(options: Mapping[str, Any], root: str) -> dict[str, Any]:
    # Whoever writes http:// means it; requests are signed, so no secret travels with them.
    place = str(options.get("endpoint") or root)
    return {**CLIENT_OPTIONS, **({"allow_http": True} if place.startswith("http://") else {})}


def _retry() -> dict[str, Any]:
    patience_s = float(os.environ.get(PATIENCE_VARIABLE, PATIENCE_S))
    pauses = {
        "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
        "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
        "base": 2,
    }
    # Pauses of 0.1, 0.2, ... 10 s: the patience ends before the number does.
    num_retries = 5 + int(patience_s)
    return {
        "max_retries": num_retries,
        "retry_timeout": timedelta(seconds=patience_s),
        "backoff": pauses,
    }
