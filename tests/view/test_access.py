from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from shardmill.view.access import HEADERS, AccessPolicy, Refused, RequestGuard


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root/stage/shards", "root/stage/receipts", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside" / "secret.tar").write_text("secret")
    return tmp_path / "root", tmp_path / "outside"


def test_what_lies_inside_is_held_and_what_climbs_out_is_not(places: tuple[Path, Path]) -> None:
    root, outside = places
    policy = AccessPolicy.below(root)
    assert policy.allows(root / "stage")
    assert not policy.allows(root / ".." / "outside")
    assert not policy.allows(root.parent / "root-beside")
    assert not policy.allows(outside)


@pytest.mark.parametrize("place", ["stage/shards/0.tar", "stage/stage.json", "stage/rejects"])
def test_a_link_out_of_the_folder_is_refused(places: tuple[Path, Path], place: str) -> None:
    root, outside = places
    policy = AccessPolicy.below(root)
    policy.check_links(root / "stage")
    (root / place).symlink_to(outside / "secret.tar")
    with pytest.raises(Refused, match="--allow"):
        policy.check_links(root / "stage")
    AccessPolicy.below(root, (str(outside),)).check_links(root / "stage")


def test_a_link_that_stays_inside_is_followed(places: tuple[Path, Path]) -> None:
    root, _ = places
    (root / "stage" / "shards" / "1.tar").symlink_to(root / "stage" / "receipts")
    AccessPolicy.below(root).check_links(root / "stage")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("s3://bucket/data/x.tar", True),
        ("s3://bucket/data-two/x.tar", False),
        ("s3://bucket/data/../keys/x.tar", False),
        ("s3://other/data/x.tar", False),
        ("/etc/passwd", False),
        ("file:///etc/passwd", False),
    ],
)
def test_tars_of_an_index_are_read_only_where_allowed(
    places: tuple[Path, Path], url: str, good: bool
) -> None:
    policy = AccessPolicy.below(places[0], ("s3://bucket/data",))
    if good:
        policy.check_url(url)
        return
    with pytest.raises(Refused):
        policy.check_url(url)


TOKEN = "right-token"


def client(host: str = "127.0.0.1:8000") -> TestClient:
    def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("inside")

    app = Starlette(routes=[Route("/", page, methods=["GET", "POST"])])
    return TestClient(RequestGuard(app, TOKEN, "cookie"), base_url=f"http://{host}")


def test_the_token_opens_the_page_and_becomes_a_cookie() -> None:
    browser = client()
    first = browser.get("/", params={"token": TOKEN})
    assert first.text == "inside"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert browser.get("/").text == "inside"


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=right-token%00", "?x=1"])
def test_without_the_token_nothing_is_told(query: str) -> None:
    refused = client().get(f"/{query}", headers={"cookie": "cookie=wrong; other=right-token"})
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers
    assert "inside" not in refused.text


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8000"])
def test_names_of_the_loopback_are_answered(host: str) -> None:
    assert client(host).get("/", params={"token": TOKEN}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", ""]
)
def test_a_rebound_name_is_not_answered(host: str) -> None:
    refused = client().get("/", params={"token": TOKEN}, headers={"host": host})
    assert refused.status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(method: str) -> None:
    assert client().request(method, "/", params={"token": TOKEN}).status_code == 405


def test_every_response_carries_the_policy() -> None:
    for params in ({"token": TOKEN}, {}):
        found = client().get("/", params=params).headers
        assert {name: found[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
