"""What stores answer when they refuse, as errors that say what to do.

The client's own messages hold whole requests; of those only the status and the store's code for
the problem are taken over, so that no signature or token can end in a log.
"""

from __future__ import annotations

import errno
import re

from shardmill.errors import StoreError
from shardmill.remote.url import plain_url

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
NO_BUCKET = "there is no such bucket: make it, or mend its name"
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
