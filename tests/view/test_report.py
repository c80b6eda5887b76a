from __future__ import annotations

import json
import re
from pathlib import Path

from shardmill.view.context import Context
from shardmill.view.report import address, join_modules, make_report

BUNDLE = re.compile(rb'<script type="application/json" id="bundle">(.*?)</script>', re.DOTALL)


def bundle_of(report: bytes) -> dict[str, object]:
    found = BUNDLE.search(report)
    assert found is not None
    loaded: dict[str, object] = json.loads(found[1])
    return loaded


def test_a_report_is_complete_in_itself(context: Context) -> None:
    report = make_report(context)
    text = re.sub(rb"http://www\.w3\.org/[\w/]+", b"", report)
    assert b"http://" not in text and b"https://" not in text
    assert b'src="' not in text and b"<link" not in text
    bundle = bundle_of(report)
    views = {(section.get("id"), section["view"]) for section in bundle["sections"]}  # type: ignore[attr-defined]
    assert {
        (None, "map"),
        ("pairs", "rejected"),
        ("packs", "pack"),
        ("packs.plan", "overview"),
    } <= views
    assert any(value.startswith("data:image/jpeg") for value in bundle["media"].values())  # type: ignore[attr-defined]


def test_a_report_of_hostile_samples_holds_no_tag_of_theirs(hostile: Path) -> None:
    report = make_report(Context(hostile))
    assert report.count(b"<script") == 2
    assert report.count(b"</script>") == 2
    assert b"<img" not in report.replace(b'"img"', b"")
    assert "onerror" in json.dumps(bundle_of(report))


def test_modules_become_one_script_in_order() -> None:
    pages = {
        "a.js": 'import { b } from "./b.js";\nexport function a() { return b + 1; }\n',
        "b.js": "const STEP = 2;\nexport const b = STEP;\n",
        "main.js": 'import { a } from "./a.js";\nimport { b } from "./b.js";\na(b);\n',
    }
    script = join_modules(pages, "main")
    assert "import" not in script and "export" not in script
    places = [script.index(f"const module_{name} =") for name in ("b", "a", "main")]
    assert places == sorted(places)
    assert script.count("const module_b =") == 1


def test_addresses_are_written_as_the_page_writes_them() -> None:
    assert address("sample", {"n": "3", "id": "a/b c"}) == "sample?id=a%2Fb%20c&n=3"
    assert address("map", {}) == "map"
    assert address("x", {"q": "é'()!*~-_.&"}) == "x?q=%C3%A9'()!*~-_.%26"
