from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from shardmill.view.server import HEADERS, Locks

TOKEN = "right-token"


def client(host: str = "127.0.0.1:8000") -> TestClient:
    def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("inside")

    app = Starlette(routes=[Route("/", page, methods=["GET", "POST"])])
    return TestClient(Locks(app, TOKEN, "cookie"), base_url=f"http://{host}")


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
