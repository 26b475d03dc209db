"""JSON values of any form in columns of texts: an object, a list or a number becomes the JSON text that stands there.
So does what is for a map: the parser would make a struct of it, in which a null is no entry.

Logs hold one name with several forms (`"code": 5` and `"code": "5"`), and objects that nobody wants taken apart. The
parser refuses them; so a block that it refused is rewritten, value by value as the file has it, digits and all.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

_BLANK = b" \t\r\n"
_rows = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def with_json_texts(block: bytes, types: Mapping[str, pa.DataType]) -> bytes | None:
    """The lines with texts where the types are texts, also within structs, lists and maps; None when nothing changes.

    Lines that are no JSON objects stay unchanged: their reader says what is wrong with them.
    """
    wanted = {name: kind for name, kind in types.items() if _has_texts(kind)}
    lines = block.split(b"\n") if wanted else []
    changed = [_line(line, wanted) for line in lines]
    return b"\n".join(changed) if changed != lines else None


def _line(line: bytes, types: Mapping[str, pa.DataType]) -> bytes:
    try:
        return _object(line, types) if line.strip() else line
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line


def _object(text: bytes, types: Mapping[str, pa.DataType], *, in_map: bool = False) -> bytes:
    found = _rows.decode(text)
    changed = {
        name: _value(bytes(raw), types[name], in_map) if name in types else bytes(raw) for name, raw in found.items()
    }
    if all(changed[name] == bytes(raw) for name, raw in found.items()):
        return text
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + value for name, value in changed.items()) + b"}"


def _value(raw: bytes, kind: pa.DataType, in_map: bool) -> bytes:
    """`in_map`: within what becomes a text as a whole."""
    text = raw.strip(_BLANK)
    if text == b"null" or not _has_texts(kind):
        return raw
    if pa.types.is_string(kind):
        return raw if text.startswith(b'"') else _text(text)
    if pa.types.is_map(kind):
        if text.startswith(b"{"):
            text = _object(text, dict.fromkeys(_rows.decode(text), kind.item_type), in_map=True)
        return text if in_map or text.startswith(b'"') else _text(text)
    if text.startswith(b"{") and pa.types.is_struct(kind):
        return _object(text, {field.name: field.type for field in kind}, in_map=in_map)
    if text.startswith(b"[") and pa.types.is_list(kind):
        items = [bytes(item) for item in _items.decode(text)]
        changed = [_value(item, kind.value_type, in_map) for item in items]
        return b"[" + b",".join(changed) + b"]" if changed != items else raw
    return raw


def _text(text: bytes) -> bytes:
    return msgspec.json.encode(text.decode())


def _has_texts(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_texts(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_texts(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_string(kind))
