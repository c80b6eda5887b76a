"""What a store or the client says becomes an error that says what to do, and nothing secret."""

from __future__ import annotations

import pytest

from shardmill.errors import StoreError
from shardmill.storage.client import explain, was_interrupted

REQUEST = "Error performing GET http://host/b/x?X-Amz-Signature=topsecret in 3ms"


def said(status: str, code: str) -> Exception:
    return Exception(
        f"{REQUEST} - Server returned non-2xx status code: {status}: <Code>{code}</Code>"
    )


@pytest.mark.parametrize(
    ("error", "advice", "passing"),
    [
        (said("403 Forbidden", "AccessDenied"), "ask for the right to write", False),
        (said("403 Forbidden", "SignatureDoesNotMatch"), "its secret is wrong", False),
        (said("400 Bad Request", "ExpiredToken"), "get a new one", False),
        (said("400 Bad Request", "AuthorizationHeaderMalformed"), "another region", False),
        (said("401 Unauthorized", ""), "no credential: set AWS_ACCESS_KEY_ID", False),
        (said("400 Bad Request", "EntityTooLarge"), "refused (400, EntityTooLarge)", False),
        (said("503 Slow Down", "SlowDown"), "does not answer (503, SlowDown)", True),
        (said("429 Too Many Requests", ""), "does not answer (429)", True),
        (Exception("Error performing GET http://169.254.169.254/latest"), "no credential", False),
        (Exception(f"{REQUEST} - HTTP error: error sending request"), "does not answer:", True),
    ],
)
def test_every_trouble_has_its_advice(error: Exception, advice: str, passing: bool) -> None:
    found = explain(error, "s3://b/x", verb="write")
    assert isinstance(found, StoreError)
    assert advice in str(found) and found.passing == passing
    assert str(found).startswith("cannot write s3://b/x: ")
    assert "topsecret" not in str(found)


def test_an_object_that_is_gone_is_not_a_bucket_that_is_gone() -> None:
    gone = explain(
        FileNotFoundError("status code: 404: <Code>NoSuchKey</Code>"), "s3://b/x", verb="read"
    )
    assert isinstance(gone, FileNotFoundError) and not isinstance(gone, StoreError)
    bucket = explain(
        FileNotFoundError("status code: 404: <Code>NoSuchBucket</Code>"), "s3://b/x", verb="read"
    )
    assert isinstance(bucket, StoreError) and "no such bucket" in str(bucket)


def test_the_variables_are_those_of_the_store() -> None:
    for url, name in (
        ("oss://b/x", "OSS_ENDPOINT"),
        ("gs://b/x", "GOOGLE"),
        ("abfs://b/x", "AZURE"),
    ):
        assert name in str(explain(said("403 Forbidden", "AccessDenied"), url, verb="read"))


@pytest.mark.parametrize(
    ("text", "again"),
    [
        (f"{REQUEST} - HTTP error: request or response body error\n\nmore", True),
        ("Error getting list response body: HTTP error: request or response body error", True),
        (f"{REQUEST}, after 3 retries, max_retries: 3  - HTTP error: error sending request", False),
        (f"{REQUEST} - Server returned non-2xx status code: 403 Forbidden", False),
        (f"{REQUEST} - Received redirect without LOCATION", False),
    ],
)
def test_only_what_the_client_does_not_repeat_is_repeated(text: str, again: bool) -> None:
    assert was_interrupted(Exception(text)) == again
