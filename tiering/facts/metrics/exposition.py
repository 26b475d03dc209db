"""The numbers as Prometheus' text format, and as a document for `--json`.

The text is prometheus_client's: it escapes what names of tables hold. That package is an extra; the document needs it
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from oplog.errors import UsageError
from tiering.facts.metrics.family import Family

if TYPE_CHECKING:
    from prometheus_client.core import Metric

INSTALL = "pip install 'frostline[metrics]'"


def check_installed() -> None:
    """Raise `UsageError`, with what to install, where the text cannot be made."""
    try:
        import prometheus_client.exposition  # noqa: F401 - whether it is there is all that matters
    except ImportError as error:
        raise UsageError("metrics as text need prometheus_client, which is not installed", hint=INSTALL) from error


def text(families: Sequence[Family]) -> bytes:
    """What Prometheus reads, at an address or from a textfile collector's directory. Raises as `check_installed`."""
    check_installed()
    from prometheus_client import generate_latest

    return bytes(generate_latest(_Collected(families)))  # all that it asks of a registry


class MetricSample(msgspec.Struct, frozen=True):
    """A value with its labels."""

    labels: dict[str, str]
    value: float


class MetricRow(msgspec.Struct, frozen=True):
    """A metric of `metrics --json`."""

    name: str
    kind: str
    help: str
    samples: list[MetricSample]


def rows(families: Iterable[Family]) -> list[MetricRow]:
    """The same for `--json`."""
    return [
        MetricRow(
            family.name,
            family.kind,
            family.help,
            [MetricSample(dict(zip(family.labels, labels, strict=True)), value) for labels, value in family.samples],
        )
        for family in families
    ]


class _Collected:
    """A registry of numbers that are known already."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._families:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name.removesuffix("_total"), family.help, labels=family.labels)
            for labels, value in family.samples:
                metric.add_metric([_encodable(label) for label in labels], value)
            yield metric


def _encodable(label: str) -> str:
    """The text with half characters, which UTF-8 cannot hold, shown as `\\ud800`."""
    return label.encode("utf-8", "backslashreplace").decode()
