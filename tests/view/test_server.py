from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import integers
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from shardmill.errors import ConfigError
from shardmill.view.answers import static_files
from shardmill.view.context import Context
from shardmill.view.server import HEADERS, RequestGuard, _span, bind, make_app

TOKEN = "token"


def client_of(context: Context) -> TestClient:
    found = TestClient(make_app(context, TOKEN, 8000), base_url="http://127.0.0.1:8000")
    found.get("/", params={"token": TOKEN})
    return found


@pytest.fixture
def client(context: Context) -> TestClient:
    return client_of(context)


def test_the_page_and_all_it_loads_are_ours(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name, content in static_files().items():
        loaded = client.get(f"/static/{name}")
        assert loaded.status_code == 200
        assert loaded.content == content
        text = content.decode()
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        assert "innerHTML" not in text and "eval(" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/context.py",
        "/static//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/__class__",
        "/nothing",
    ],
)
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("id", ["../secret", "/etc", "..", "chats/../../secret", "%2e%2e", "\0"])
@pytest.mark.parametrize("name", ["item", "units", "samples", "rows", "packs", "plots", "codes"])
def test_no_id_leads_out(client: TestClient, name: str, id: str) -> None:
    answer = client.get(f"/api/{name}", params={"id": id})
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("there is no")


@pytest.mark.parametrize(
    "params",
    [
        {"id": "chats", "n": "0", "name": "../../manifest.json"},
        {"id": "chats", "n": "99999999", "name": "jpg"},
        {"id": "../chats", "n": "0", "name": "jpg"},
    ],
)
def test_media_are_members_and_nothing_else(client: TestClient, params: dict[str, str]) -> None:
    assert client.get("/media", params=params).status_code == 404


def test_an_image_is_served_whole_and_small(client: TestClient) -> None:
    whole = client.get("/media", params={"id": "chats", "n": "0", "name": "jpg"})
    assert whole.headers["content-type"] == "image/jpeg"
    assert (
        whole.content == (Path(__file__).parents[2] / "demo/data/photos/astronaut.jpg").read_bytes()
    )
    small = client.get("/media", params={"id": "chats", "n": "0", "name": "jpg", "w": "160"})
    assert len(small.content) < len(whole.content)
    assert "sandbox" in whole.headers["content-security-policy"]


def test_a_video_is_served_by_ranges_and_as_frames(client: TestClient) -> None:
    params = {"id": "chats", "n": "17", "name": "mp4"}
    whole = client.get("/media", params=params)
    assert whole.headers["content-type"] == "video/mp4"
    size = len(whole.content)
    part = client.get("/media", params=params, headers={"range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.headers["content-range"] == f"bytes 100-199/{size}"
    assert part.content == whole.content[100:200]
    beyond = client.get("/media", params=params, headers={"range": f"bytes={size}-"})
    assert beyond.status_code == 416
    shot = client.get("/media", params={**params, "ms": "3000", "w": "160"})
    assert shot.headers["content-type"] == "image/jpeg"


@given(size=integers(0, 50), start=integers(0, 60), last=integers(0, 60))
def test_a_range_is_a_slice(size: int, start: int, last: int) -> None:
    content = bytes(range(size))
    found = _span(f"bytes={start}-{last}", size)
    expected = content[start : last + 1]
    assert (content[slice(*found)] if found else b"") == expected
    found = _span(f"bytes={start}-", size)
    assert (content[slice(*found)] if found else b"") == content[start:]
    tail = _span(f"bytes=-{last}", size)
    assert tail is not None
    assert content[slice(*tail)] == content[max(0, size - last) :]


@pytest.mark.parametrize("text", ["bytes=", "bytes=-", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1"])
def test_a_range_that_is_none_is_not_served(text: str) -> None:
    assert _span(text, 10) is None


def test_what_wants_to_be_run_is_handed_out_as_bytes(hostile: Path) -> None:
    client = client_of(Context(hostile))
    (id,) = (node["id"] for node in client.get("/api/map").json()["nodes"])
    for number in (1, 2):
        found = client.get("/media", params={"id": id, "n": str(number), "name": "png"})
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.headers["content-disposition"] == "attachment"
        assert found.headers["x-content-type-options"] == "nosniff"


def test_answers_are_json_and_never_kept(client: TestClient) -> None:
    found = client.get("/api/map")
    assert found.headers["content-type"] == "application/json"
    assert found.headers["cache-control"] == "no-store"
    json.loads(found.content)


def test_errors_say_what_is_wrong(client: TestClient) -> None:
    wrong = client.get("/api/samples", params={"id": "tokens"})
    assert wrong.status_code == 400
    assert "holds tokens" in wrong.json()["error"]
    assert client.get("/api/sample", params={"id": "chats", "n": "x"}).status_code == 400


def test_the_shared_link_opens_the_page(context: Context, client: TestClient) -> None:
    address = client.get("/api/share").json()["address"]
    fresh = TestClient(make_app(context, TOKEN, 8000), base_url="http://127.0.0.1:8000")
    assert fresh.get("/").status_code == 403
    assert fresh.get(address).status_code == 200


def test_a_port_that_is_taken_gives_way_unless_it_was_asked_for() -> None:
    taken = bind(0, 0)
    port = taken.getsockname()[1]
    other = bind(None, port)
    assert other.getsockname()[0] == "127.0.0.1"
    assert other.getsockname()[1] != port
    with pytest.raises(ConfigError, match="in use"):
        bind(port, 0)
    taken.close()
    other.close()


GUARD_TOKEN = "right-token"


def guarded(host: str = "127.0.0.1:8000") -> TestClient:
    def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("inside")

    app = Starlette(routes=[Route("/", page, methods=["GET", "POST"])])
    return TestClient(RequestGuard(app, GUARD_TOKEN, "cookie"), base_url=f"http://{host}")


def test_the_token_opens_the_page_and_becomes_a_cookie() -> None:
    browser = guarded()
    first = browser.get("/", params={"token": GUARD_TOKEN})
    assert first.text == "inside"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert browser.get("/").text == "inside"


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=right-token%00", "?x=1"])
def test_without_the_token_nothing_is_told(query: str) -> None:
    refused = guarded().get(f"/{query}", headers={"cookie": "cookie=wrong; other=right-token"})
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers
    assert "inside" not in refused.text


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8000"])
def test_names_of_the_loopback_are_answered(host: str) -> None:
    assert guarded(host).get("/", params={"token": GUARD_TOKEN}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", ""]
)
def test_a_rebound_name_is_not_answered(host: str) -> None:
    refused = guarded().get("/", params={"token": GUARD_TOKEN}, headers={"host": host})
    assert refused.status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(method: str) -> None:
    assert guarded().request(method, "/", params={"token": GUARD_TOKEN}).status_code == 405


def test_every_response_carries_the_policy() -> None:
    for params in ({"token": GUARD_TOKEN}, {}):
        found = guarded().get("/", params=params).headers
        assert {name: found[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
