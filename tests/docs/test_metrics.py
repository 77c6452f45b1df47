"""The page on metrics has a row for each family that is exported, with its labels, and for no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily

from resilient_mw_integrations.prometheus import FAMILIES, PREFIX
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "metrics.md"
ROW = re.compile(r"^\| (`resilient_mw_[^|]*) \| ([^|]*) \|", re.MULTILINE)


def rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the metrics on the page with their labels: one list for all of a row, or one for each."""
    for names, labels in ROW.findall(PAGE.read_text(encoding="utf-8")):
        found = re.findall(r"`(\w+)`", names)
        lists = [tuple(each.strip() for each in part.split(",")) for part in labels.split(";")]
        assert len(lists) in (1, len(found)), names
        yield from zip(found, lists * (len(found) // len(lists)), strict=True)


def test_the_page_has_a_row_for_each_metric() -> None:
    exported = {
        PREFIX + family.name + ("_total" if family.kind is CounterMetricFamily else ""): family.labels
        for family in FAMILIES
    }
    described = list(rows())
    assert len(described) == len(dict(described))
    assert dict(described) == exported
