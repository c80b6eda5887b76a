"""The probe reaches many scripts, and the tokenizer's own control tokens."""

from __future__ import annotations

import unicodedata

from shardmill.tokens.text.tokenizer import PROBES, probe_texts


def test_the_probe_speaks_many_scripts() -> None:
    names = {unicodedata.name(c, "NONE").split()[0] for c in "".join(PROBES)}
    wanted = {"LATIN", "CYRILLIC", "GREEK", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "CJK"}
    assert wanted | {"HANGUL", "HIRAGANA", "KATAKANA", "GEORGIAN", "ETHIOPIC", "TAMIL"} <= names
    assert "" in PROBES and any("\x00" in text for text in PROBES)
    assert any("<s><s>" in text for text in probe_texts(["<s>"]))
