"""Text of others, made safe for a terminal: names, keys, reasons and errors may hold anything.

A terminal obeys control characters, wherever they come from: one may clear the screen, another go back and write over a
line, a line end forges a line of our own. What turns text around (Trojan Source, CVE-2021-42574) is of that kind.
"""

import re

_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff]"  # line ends, annotations, what is no character
)
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ufff9-\ufffb]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """The text in one line, with every character that a terminal would obey shown as `\\x1b`, `\\n` or `\\u202e`."""
    return _CONTROLS.sub(_shown, text) if not text.isprintable() else text


def visible_json(text: str) -> str:
    """An equal JSON document, with those characters escaped that JSON itself leaves alone."""
    return text if text.isascii() and "\x7f" not in text else _NOT_IN_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
