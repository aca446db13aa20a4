"""Fixtures for tests of the operator's jobs."""

from tests.server_jobs.commands import hold, place
from tests.server_jobs.standalone import cluster

__all__ = ["cluster", "hold", "place"]
