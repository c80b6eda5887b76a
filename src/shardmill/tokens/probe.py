"""A short text that tells tokenizers apart: scripts, spaces, digits, emoji, control characters."""

from __future__ import annotations

from collections.abc import Iterable

PROBES: tuple[str, ...] = (
    "",
    " ",
    "  two  spaces   and a tab\tand\r\nlines\n\n\nend ",
    "\n",
    " leading, trailing ",
    "Hello, world! It's 12:30; we've 1234567890 reasons (3.14159, 1e-10, 0xFF), don't we?",
    "def f(x: int) -> str:\n    return f'{x:>8}'  # comment\n\n\tif not x:\n\t\tpass\n",
    'https://example.org/a_b?c=d&e=%20#f <b>bold</b> {"key": [1, null]} `code` **md** ~~~',
    "CamelCase snake_case kebab-case SCREAMING_CASE x86_64 C++ C# .NET",
    "Ünïcödé: Straße, façade, naïve, Łódź, İstanbul, ǅ, ﬁ ligature, Ω µ µ",
    "e\u0301 and é, A\u030a and Å, \u1e9b\u0323, Hangul \u1112\u1161\u11ab and 한",
    "Привет, мир! Съешь ещё этих мягких французских булок.",
    "Γειά σου Κόσμε, ελληνικά",
    "שלום עולם وبعد مرحبا بالعالم ۱۲۳ فارسی",
    "नमस्ते दुनिया ಕನ್ನಡ தமிழ் ไทยภาษา ລາວ မြန်မာ ქართული Հայերեն አማርኛ",
    "你好，世界！这是一个测试。繁體中文、日本語のテスト（カタカナ）、한국어 문장입니다。",
    "𠮷野家 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 ℝ²→ℝ ∀x∈X ½ ⅷ ①",
    "😀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ✈︎ 🏳️‍🌈",
    "\u200bzero\u200dwidth\ufeff bom \u00a0nbsp\u3000wide\u2028line\u2029para\u0085nel",
    "\x00nul \x01\x07\x1b[31m\x7f \ufffd \ue000 \U000f0000 \U0010ffff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8,
    "1" * 70 + " " * 70 + "\n" * 40 + "=" * 70 + "ー" * 40,
)


def probe_texts(tokens: Iterable[str]) -> list[str]:
    """Return the probe texts, and texts in which these tokens of the tokenizer stand."""
    marked = [f"a {token} b{token}{token}c\n{token}" for token in tokens]
    return [*PROBES, "".join(PROBES), *marked]
