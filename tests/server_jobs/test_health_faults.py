"""Faults of a running system are reported with the right finding: a short form of `benchmarks.health_faults`."""

import sys

import pytest

from benchmarks.health_faults import FAULTS, INTERVAL, reported
from tests.support.effort import few_or_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit, which changes running processes, is Linux's")

SAID = {
    "damaged-file": "is damaged",
    "read-only-store": "Permission denied",
    "refusals-in-a-row": "'not_a_ping'",
    "full-disk": "full",
    "no-descriptors": "LimitNOFILE",
    "killed-ingest": "10 pings",
}


def test_every_fault_has_its_words() -> None:
    assert SAID.keys() == FAULTS.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(FAULTS)[: few_or_all(2, len(FAULTS))])
def test_a_broken_system_is_reported_within_an_interval(name: str) -> None:
    _, said, beat = reported(FAULTS[name], INTERVAL)
    assert said.startswith("problem: ")
    assert SAID[name] in said
    assert bool(beat) is bool(FAULTS[name].check)
