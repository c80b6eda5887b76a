"""The page in a real browser: every view, the way from a pack to its source, hostile input."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from view_folders import HOSTILE_KEY, HOSTILE_NAME, SCRIPT, make_codes, make_hostile

from shardmill.view.context import Context
from shardmill.view.report import make_report
from shardmill.view.server import bind, make_app

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

TOKEN = "browser-token"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 30_000
VIEWS = [
    "#/",
    "#/search?q=00000016",
    "#/item/pairs/overview",
    "#/item/pairs/samples",
    "#/item/pairs/samples?q=0003",
    "#/item/pairs/sample/3",
    "#/item/chats/sample/17",
    "#/item/pairs/units",
    "#/item/pairs/unit/000002",
    "#/item/pairs/rejected",
    "#/item/pairs/rejected?reason=missing%20file",
    "#/item/pairs/spec",
    "#/item/tokens/overview",
    "#/item/tokens/rows",
    "#/item/tokens/rows?q=0003",
    "#/item/tokens/row/16",
    "#/item/packs/packs",
    "#/item/packs/pack/1",
    "#/item/packs/pack/2?doc=3",
    "#/item/packs.plan/overview?world=2",
    "#/item/packs.plan/packs",
    "#/item/packs.plan/pack/0",
]


@dataclass
class Watched:
    """A page, and what went wrong on it: errors, and requests to anywhere else."""

    page: Any
    base: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", self._check)

    def show(self, hash: str) -> Any:
        """Go to a view and wait until it is drawn."""
        self.page.goto(f"{self.base}/{hash}")
        self.page.evaluate("document.querySelector('main')?.setAttribute('data-view', 'waiting')")
        self.page.evaluate("dispatchEvent(new HashChangeEvent('hashchange'))")
        self.page.wait_for_selector("main:not([data-view=waiting]) > *")
        self.page.wait_for_load_state("networkidle")
        return self.page

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _check(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.problems.append(f"asked for {request.url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


def serve(folder: Path, stack: list[Any]) -> str:
    """Serve a folder from a thread; returns its address."""
    bound = bind(0, 0)
    port = bound.getsockname()[1]
    app = make_app(Context(folder), TOKEN, port)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    stack.append((server, thread))
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Any]]:
    stack: list[Any] = []
    yield stack
    for server, thread in stack:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def base(pipeline: Path, servers: list[Any]) -> str:
    return serve(pipeline, servers)


def open_page(browser: Any, base: str, **options: Any) -> Watched:
    context = browser.new_context(viewport={"width": 1280, "height": 720}, **options)
    watched = Watched(context.new_page(), base)
    watched.page.goto(f"{base}/?token={TOKEN}")
    return watched


@pytest.fixture
def page(browser: Any, base: str) -> Iterator[Watched]:
    watched = open_page(browser, base)
    yield watched
    watched.page.context.close()
    assert watched.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_opens_without_a_fault(browser: Any, base: str, theme: str) -> None:
    watched = open_page(browser, base, color_scheme=theme)
    for view in VIEWS:
        page = watched.show(view)
        assert page.locator(".empty.bad").count() == 0, view
        assert page.locator("main > *").count() > 0, view
        wide = "document.documentElement.scrollWidth > innerWidth"
        assert not page.evaluate(wide), f"{view} is wider than a small laptop"
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, f"{view} has an image that does not load"
    watched.page.context.close()
    assert watched.problems == []


def test_a_pack_leads_to_its_image_and_its_source_file(page: Watched) -> None:
    shown = page.show("#/")
    shown.locator(".node[data-id=packs]").click()
    shown.locator(".packrow").nth(1).click()
    shown.wait_for_selector(".strip image")
    strip = shown.locator(".strip")
    assert strip.locator("image").count() == 6
    strip.locator("g.document").nth(2).click()
    shown.wait_for_selector(".panel.chosen.d2")
    chosen = shown.locator(".panel.chosen")
    assert "doc=2" in shown.url
    key = chosen.locator("h2 .key").inner_text()
    assert "He looks through" in chosen.locator(".tokens").inner_text()
    assert chosen.locator(".run.in-loss").count() > 0
    chosen.locator(".block.image a.preview").click()
    shown.wait_for_selector("article.document img")
    assert shown.locator(".subhead .key").inner_text() == key
    image = shown.locator("article.document .medium img").first
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 512
    about = shown.locator("aside.about").inner_text()
    assert "chats.json" in about and "row" in about
    shown.get_by_role("link", name=re.compile("row 2 of tokens")).click()
    shown.wait_for_selector(".tokens")
    assert "chats.json" in shown.locator(".lineage").inner_text()


def test_a_video_plays_and_its_frames_seek(page: Watched) -> None:
    shown = page.show("#/item/chats/sample/17")
    video = shown.locator("video")
    shown.wait_for_function("document.querySelector('video').readyState > 0")
    assert 5.5 < video.evaluate("v => v.duration") < 6.5
    shown.locator(".frame").nth(6).click()
    assert video.evaluate("v => v.currentTime") > 4
    shown.wait_for_function("!document.querySelector('video').seeking")


def test_search_and_keyboard(page: Watched) -> None:
    shown = page.show("#/")
    shown.keyboard.press("/")
    shown.keyboard.type("chats-00000016")
    shown.keyboard.press("Enter")
    shown.locator("main a", has_text="chats-00000016").first.click()
    shown.wait_for_selector("article.document")
    assert shown.url.endswith("#/item/chats/sample/16")
    shown.keyboard.press("j")
    shown.wait_for_url("**/#/item/chats/sample/17")
    shown.keyboard.press("u")
    shown.wait_for_url("**/#/item/chats/samples")
    shown.wait_for_selector(".sample-grid")
    shown.keyboard.press("4")
    shown.wait_for_url("**/#/item/chats/rejected")
    shown.keyboard.press("?")
    shown.wait_for_selector("dialog[open]")
    shown.keyboard.press("Escape")
    shown.keyboard.press("t")
    assert shown.evaluate("document.documentElement.dataset.theme") == "light"
    shown.keyboard.press("m")
    shown.wait_for_selector(".board")


def test_arrows_walk_through_the_documents_of_a_pack(page: Watched) -> None:
    shown = page.show("#/item/packs/pack/0")
    shown.keyboard.press("ArrowRight")
    shown.wait_for_selector(".panel.chosen.d1")
    shown.keyboard.press("ArrowLeft")
    shown.wait_for_selector(".panel.chosen.d0")


def test_a_link_shows_the_same_view_to_a_fresh_browser(browser: Any, page: Watched) -> None:
    page.show("#/item/packs/pack/2?doc=3")
    address = page.page.evaluate("fetch('api/share').then(r => r.json()).then(a => a.address)")
    fresh = browser.new_page()
    fresh.goto(f"{address}#/item/packs/pack/2?doc=3")
    fresh.wait_for_selector(".panel.chosen.d3", timeout=WAIT_MS)
    assert "token" not in fresh.url
    fresh.context.close()


def test_a_stage_by_itself_is_opened_at_once(
    browser: Any, servers: list[Any], pipeline: Path
) -> None:
    watched = open_page(browser, serve(pipeline / "packs", servers))
    watched.page.locator(".packrow").nth(1).click()
    watched.page.wait_for_selector(".strip g.document")
    assert "row 6 of packs" in watched.page.locator(".lineage").inner_text()
    assert watched.problems == []
    watched.page.context.close()


def test_without_the_token_there_is_no_page(browser: Any, base: str) -> None:
    fresh = browser.new_page()
    assert fresh.goto(f"{base}/").status == 403
    assert "token" in fresh.locator("body").inner_text()
    fresh.context.close()


def test_a_running_stage_moves(browser: Any, servers: list[Any], tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from stages_for_tests import Lines;"
        "from shardmill.running.runner import run_stage;"
        f"run_stage(Lines(num_units=40, sleep_s=0.2), Path({str(tmp_path / 'live')!r}), workers=0)"
    )
    support = str(Path(__file__).parents[1] / "support")
    run = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": support}
    )
    try:
        watched = open_page(browser, serve(tmp_path, servers))
        page = watched.page
        page.wait_for_selector(".node.running")
        bar = page.locator(".node .bar i")
        first = bar.evaluate("bar => parseFloat(bar.style.width)")
        moved = "width => parseFloat(document.querySelector('.node .bar i').style.width) > width"
        page.wait_for_function(moved, arg=first)
        assert (
            "unit" in page.locator(".node .foot").inner_text()
            or "/s" in page.locator(".node .foot").inner_text()
        )
        run.wait(120)
        page.wait_for_selector(".node:not(.running) .bar i.done")
    finally:
        run.kill()
        run.wait()
    assert watched.problems == []
    watched.page.context.close()


def test_codes_are_shown_with_outliers_first(
    browser: Any, servers: list[Any], tmp_path: Path
) -> None:
    make_codes(tmp_path / "codes")
    watched = open_page(browser, serve(tmp_path, servers))
    page = watched.show("#/item/codes/codes")
    assert page.locator("canvas").count() == 20
    keys = [page.locator("figure.codes .key").nth(place).inner_text() for place in range(2)]
    assert set(keys) == {"k7", "k13"}
    assert page.locator("figure.codes.outlier .tag.warn").count() == 2
    assert watched.problems == []
    page.context.close()


def test_hostile_samples_are_shown_and_never_run(
    browser: Any, servers: list[Any], tmp_path: Path
) -> None:
    watched = open_page(browser, serve(make_hostile(tmp_path), servers))
    name = "".join(f"%{byte:02X}" for byte in HOSTILE_NAME.encode())
    views = ["#/", "#/search?q=onerror", f"#/search?q={SCRIPT}", "#/<script>alert(1)</script>"]
    views += [f"#/item/{name}/{view}" for view in ("overview", "samples", "sample/0", "sample/1")]
    views += [f"#/item/{name}/samples?source={SCRIPT}", f"#/item/{SCRIPT}/{SCRIPT}"]
    for view in views:
        page = watched.show(view)
        time.sleep(0.05)
        assert page.evaluate("window.hacked") is None, view
        assert (
            page.evaluate("document.querySelectorAll('main script, main b[onclick]').length") == 0
        )
    page = watched.show(f"#/item/{name}/sample/0")
    assert SCRIPT in page.locator("article.document").inner_text()
    assert HOSTILE_KEY in page.locator(".subhead .key").inner_text()
    with pytest.raises(sync_api.Error, match="TrustedHTML"):
        page.evaluate("() => { document.body.innerHTML = '<i>markup</i>' }")
    page.context.close()


def test_the_report_draws_itself_from_one_file(
    browser: Any, context: Context, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_bytes(make_report(context))
    opened = browser.new_context(viewport={"width": 1280, "height": 720})
    watched = Watched(opened.new_page(), "file://")
    watched.page.goto(f"file://{tmp_path}/report.html")
    watched.page.wait_for_selector("body[data-ready=yes]")
    assert watched.page.locator(".sheet").count() > 10
    assert watched.page.locator(".sheet.pack .strip image").count() == 6
    assert watched.page.locator(".empty.bad, .sheet > .empty").count() == 0
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
    assert watched.page.evaluate(broken) == 0
    assert watched.problems == []
    opened.close()


def test_a_hostile_report_is_shown_and_never_run(browser: Any, tmp_path: Path) -> None:
    report = make_report(Context(make_hostile(tmp_path / "in")))
    (tmp_path / "report.html").write_bytes(report)
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/report.html")
    page.wait_for_selector("body[data-ready=yes]", timeout=WAIT_MS)
    assert page.evaluate("window.hacked") is None
    assert SCRIPT[:20] in page.locator("main").inner_text()
    page.context.close()
