"""A jar with Jackson under the names that Iceberg's runtime in the package snowpark-connect-deps-iceberg expects, made
of the one that pyspark brings: that runtime comes without its own.

    python relocated_jackson.py TARGET.jar SOURCE.jar…

Class names are replaced in the constant pools. Source of the format: the Java Virtual Machine Specification, 4.4.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

OLD, NEW = b"com/fasterxml/jackson", b"org/apache/iceberg/shaded/com/fasterxml/jackson"
_TEXT = 1
_WIDE = (5, 6)
"""Numbers of 64 bits take two places."""
_BYTES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Of an entry of the constant pool, by its tag."""


def relocated(data: bytes) -> bytes:
    """The class file with its names replaced."""
    entries = int.from_bytes(data[8:10], "big")
    made, place, number = bytearray(data[:10]), 10, 1
    while number < entries:
        tag = data[place]
        if tag == _TEXT:
            size = int.from_bytes(data[place + 1 : place + 3], "big")
            text = data[place + 3 : place + 3 + size].replace(OLD, NEW)
            text = text.replace(OLD.replace(b"/", b"."), NEW.replace(b"/", b"."))
            made += bytes([_TEXT]) + len(text).to_bytes(2, "big") + text
            place += 3 + size
        else:
            made += data[place : place + 1 + _BYTES[tag]]
            place += 1 + _BYTES[tag]
            number += tag in _WIDE
        number += 1
    return bytes(made + data[place:])


if __name__ == "__main__":
    seen: set[str] = set()
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as target:
        for source in map(Path, sys.argv[2:]):
            with zipfile.ZipFile(source) as jar:
                for name in jar.namelist():
                    if name.endswith(".class") and name.startswith(OLD.decode()) and name not in seen:
                        seen.add(name)
                        target.writestr(name.replace(OLD.decode(), NEW.decode()), relocated(jar.read(name)))
