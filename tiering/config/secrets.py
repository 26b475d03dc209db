"""What of a configuration is never shown. Pure."""

import re

MASK = "********"
SECRET_PROPERTY = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""What Spark covers among its properties (`spark.redaction.regex`), and credentials."""
_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*):[^/?#\s]+@")
"""Of a URL, up to the last @ before the path."""


_SIGNED = re.compile(
    r"(?i)(?<=[?&])(X-Amz-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature)=[^&\s\"']+"
)
"""What opens an object to anybody who has its signed URL."""


def without_passwords(text: str) -> str:
    """The text with the password and the signature of each URL in it covered."""
    if "://" not in text:
        return text
    return _SIGNED.sub(rf"\1={MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))
