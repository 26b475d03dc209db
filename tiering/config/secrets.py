"""What of a configuration is never shown. Pure."""

import re

MASK = "********"
SECRET_PROPERTY = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""What Spark covers among its properties (`spark.redaction.regex`), and credentials."""
_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*):[^/?#\s]+@")
"""Of a URL, up to the last @ before the path."""


def without_passwords(text: str) -> str:
    """The text with the password of each URL in it covered."""
    return _PASSWORD.sub(rf"\1:{MASK}@", text) if "://" in text else text
