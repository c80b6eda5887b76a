"""Objects keep their promises on a real store; requests that fail get through or say what to do."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_proxy import HARM, Choose, faulty_proxy, harm_some
from servers import ACCESS_KEY, SECRET_KEY, web_server

from shardmill.errors import ConfigError, StoreError
from shardmill.storage import objects
from shardmill.storage.objects import (
    NotOffered,
    call,
    explain,
    find_object,
    is_in_use,
    open_reader,
    was_interrupted,
)
from shardmill.storage.path import as_path

CONTENT = random.Random(7).randbytes(700_000)


def every_other(harm: str) -> Choose:
    """Return a choice that harms the first of every two requests of a kind."""
    counts: dict[str, int] = {}

    def choose(method: str, path: str) -> str | None:
        counts[method] = counts.get(method, 0) + 1
        return harm if counts[method] % 2 else None

    return choose


@pytest.mark.parametrize("harm", [*HARM, "429", "500"])
def test_every_request_gets_through_a_fault(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    with faulty_proxy(store_env, every_other(harm)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        objects.put(f"{store_url}/big", CONTENT)
        assert objects.get(f"{store_url}/big") == CONTENT
        assert objects.create(f"{store_url}/lock", b"mine")
        assert not objects.create(f"{store_url}/lock", b"other")
        assert objects.exchange(f"{store_url}/lock", b"mine".__eq__, b"next")
        assert [info.path for info in objects.list_all(store_url)] == ["big", "lock"]
        assert objects.look(f"{store_url}/big").num_bytes == len(CONTENT)
        objects.delete([f"{store_url}/lock"])
        assert not as_path(f"{store_url}/lock").exists()
    assert proxy.harm.count(harm) >= 5


def test_a_large_file_goes_up_in_parts_through_faults(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    local = as_path(str(tmp_path)) / "large"
    local.write_bytes(CONTENT * 16)
    with faulty_proxy(store_env, harm_some(3, 0.3, ("503", "cut", "cut request"))) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        objects.put_file(f"{store_url}/large", local)
    assert proxy.harm and any("partNumber" in path for _, path in proxy.requests)
    assert objects.get(f"{store_url}/large") == CONTENT * 16


@pytest.mark.parametrize(
    ("harm", "advice", "passing"),
    [
        ("denied", "no permission: ask for the right to read", False),
        ("expired", "its credential has expired: get a new one", False),
        ("region", "in another region or behind another endpoint: check AWS_", False),
        ("clock", "the clock of this machine is wrong", False),
        ("no bucket", "there is no such bucket: make it", False),
        ("503", "the store does not answer", True),
    ],
)
def test_a_refusal_says_what_to_do_and_no_secret(
    store_env: str,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
    advice: str,
    passing: bool,
) -> None:
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "0.5")
    with faulty_proxy(store_env, lambda method, path: harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(StoreError, match=advice) as caught:
            objects.get(f"{store_url}/x")
    assert caught.value.passing == passing
    assert f"{store_url}/x" in str(caught.value)
    assert SECRET_KEY not in str(caught.value) and ACCESS_KEY not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_wrong_key_a_wrong_endpoint_and_an_absent_bucket_are_told_apart(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "0.5")
    with pytest.raises(StoreError, match="no such bucket"):
        objects.get("s3://absent/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="does not know this credential"):
        objects.get(f"{store_url}/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="does not answer"):
        objects.get(f"{store_url}/x")


def test_a_store_without_conditions_is_looked_at_before_a_put(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="needs OSS_ENDPOINT"):
        objects.get(store_url.replace("s3", "oss", 1))
    for name, value in (
        ("OSS_ENDPOINT", store_env),
        ("OSS_ACCESS_KEY_ID", ACCESS_KEY),
        ("OSS_ACCESS_KEY_SECRET", SECRET_KEY),
    ):
        monkeypatch.setenv(name, value)
    url = f"{store_url.replace('s3', 'oss', 1)}/lock"
    assert objects.create(url, b"mine") and not objects.create(url, b"other")
    assert objects.exchange(url, b"mine".__eq__, b"next")
    assert not objects.exchange(url, b"mine".__eq__, b"late")
    assert objects.get(url) == b"next" == objects.get(url.replace("oss", "s3", 1))
    with pytest.raises(NotOffered, match=r"cannot write oss://.*/lock: .*not offer"):
        call(find_object(url), "put", verb="write", file=b"x", mode="create", use_multipart=False)


def test_these_stores_get_the_bucket_in_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOS_ENDPOINT", "tos-s3-cn-beijing.volces.com")
    monkeypatch.setenv("TOS_REGION", "cn-beijing")
    options = objects._options("tos", "data")
    assert options["endpoint"] == "https://data.tos-s3-cn-beijing.volces.com"
    assert options["virtual_hosted_style_request"] is True and options["region"] == "cn-beijing"


def _get_in_child(url: str, answer: Callable[[str], None]) -> None:
    try:
        objects.get(url)
    except ConfigError as error:
        answer(str(error))


def test_a_forked_process_is_told_to_be_spawned(store_url: str) -> None:
    objects.put(f"{store_url}/x", b"x")
    assert is_in_use()
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_get_in_child, args=(f"{store_url}/x", send.send)
    )
    child.start()
    assert receive.poll(60) and "spawn" in receive.recv()
    child.join()
    assert find_object(store_url).client is not None and os.getpid() != child.pid


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


def test_of_many_that_create_one_succeeds(store_url: str) -> None:
    def create(number: int) -> bool:
        return objects.create(f"{store_url}/lock", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert objects.get(f"{store_url}/lock") == b"%d" % won.index(True)


def test_an_exchange_is_for_its_owner_only(store_url: str) -> None:
    objects.put(f"{store_url}/lock", b"mine 1")
    assert objects.exchange(f"{store_url}/lock", lambda c: c.startswith(b"mine"), b"mine 2")
    assert not objects.exchange(f"{store_url}/lock", lambda c: c.startswith(b"yours"), b"yours 1")
    assert objects.get(f"{store_url}/lock") == b"mine 2"
    with pytest.raises(FileNotFoundError):
        objects.exchange(f"{store_url}/none", lambda c: True, b"")


def test_where_nobody_answers_it_is_said_soon(
    monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    monkeypatch.setattr(objects, "FIRST_PATIENCE_S", 0.1)
    patience = os.environ.get(objects.PATIENCE_VARIABLE)
    with pytest.raises(ConfigError, match=r"nobody answers at http://127.0.0.1:9, which"):
        objects.check_answers("http://127.0.0.1:9/rows.jsonl")
    objects.check_answers(f"{store_url}/gone")  # whoever reads it will say so
    assert os.environ.get(objects.PATIENCE_VARIABLE) == patience


def test_listings_have_names_sizes_and_order(store_url: str) -> None:
    names = ["a/2", "a/10", "b", "a.txt"]
    for name in names:
        objects.put(f"{store_url}/{name}", name.encode())
    found = list(objects.list_all(store_url))
    assert [info.path for info in found] == sorted(names)
    assert [info.num_bytes for info in found] == [len(name) for name in sorted(names)]
    folders, here = objects.list_here(store_url)
    assert folders == ["a"] and [info.path for info in here] == ["a.txt", "b"]
    assert list(objects.list_all(f"{store_url}/nothing")) == []
    # A folder is not what merely begins like it.
    assert [info.path for info in objects.list_all(f"{store_url}/a")] == ["10", "2"]


def test_deleting_does_not_mind_what_is_gone(store_url: str) -> None:
    urls = [f"{store_url}/{n}" for n in range(5)]
    for url in urls[::2]:
        objects.put(url, b"")
    objects.delete(urls)
    objects.delete([])
    assert list(objects.list_all(store_url)) == []


def test_what_is_gone_is_not_found(store_url: str) -> None:
    for look in (objects.get, objects.look):
        with pytest.raises(FileNotFoundError):
            look(f"{store_url}/none")
    with pytest.raises(StoreError, match="no such bucket"):
        list(objects.list_all("s3://absent/x"))


SEVERAL_WINDOWS = random.Random(3).randbytes(3_000_000)


def test_seeks_and_reads_are_those_of_a_file(store_url: str) -> None:
    objects.put(f"{store_url}/x", SEVERAL_WINDOWS)
    rng, real = random.Random(1), io.BytesIO(SEVERAL_WINDOWS)
    with open_reader(f"{store_url}/x") as file:
        for _ in range(200):
            if rng.random() < 0.4:
                offset = rng.randrange(len(SEVERAL_WINDOWS) + 1000)
                assert file.seek(offset) == real.seek(offset)
            size = rng.choice([0, 1, 100, 70_000, 400_000])
            assert file.read(size) == real.read(size)
            assert file.tell() == real.tell()
        assert file.seek(-10, io.SEEK_END) == len(SEVERAL_WINDOWS) - 10
        assert file.read() == SEVERAL_WINDOWS[-10:]


def test_lines_come_whole(store_url: str) -> None:
    lines = [b"%d %s\n" % (n, b"x" * (n % 977)) for n in range(3000)]
    objects.put(f"{store_url}/x", b"".join(lines))
    with open_reader(f"{store_url}/x") as file:
        assert list(file) == lines


def test_what_is_not_there_is_said_when_it_is_opened(store_url: str) -> None:
    with pytest.raises(FileNotFoundError):
        open_reader(f"{store_url}/x")


@pytest.mark.parametrize("scheme", ["s3", "az", "abfs"])
def test_plain_http_is_spoken_where_the_endpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.setenv(name, "a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "YQ==")
    with web_server(tmp_path) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AZURE_ENDPOINT", url)
        with pytest.raises(FileNotFoundError):
            objects.get(f"{scheme}://box/none")
