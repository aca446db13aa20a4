"""One Spark session for all tests that don't test a session's start and end, so that a JVM warms up only once."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from fedping.server_jobs.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2


class SharedSession:
    """A session that starts with the first test that uses it, and ends with the run or for a test of sessions."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._session: SparkSession | None = None

    def get(self) -> "SparkSession":
        from fedping.server_jobs.spark.session import spark_session

        if self._session is None:
            self._session = self._opened.enter_context(spark_session(SparkSettings(master=f"local[{CORES}]")))
        return self._session

    def end(self) -> None:
        self._session = None
        self._opened.close()


SHARED = SharedSession()


@pytest.fixture
def spark() -> "SparkSession":
    """Give the Spark session that tests share."""
    return SHARED.get()


@pytest.fixture
def warm_commands(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> "SparkSession":
    """Let commands run in this process use the shared session instead of their own."""

    @contextmanager
    def shared(_: SparkSettings | None = None) -> "Iterator[SparkSession]":
        try:
            yield spark
        finally:
            spark.sparkContext.setLogLevel("WARN")  # as it was: a command may have turned it off

    monkeypatch.setattr("fedping.server_jobs.spark.session.spark_session", shared)
    return spark


@pytest.fixture
def no_shared_session() -> None:
    """End the shared session, for a test that starts one in this process; a process can have only one at a time."""
    SHARED.end()
