"""What the commands that count landed pings share: the options of a window, and a Spark session of their kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])

ITERATION = click.IntRange(-(10**15), 10**15)
"""A version's number as the bound of a window; what the Results page takes is below, and 64 bits hold it."""

SECOND_COMPILER = ("-XX:TieredStopAtLevel=4",)
"""A round does its arithmetic in Python and gains nothing from Java's second compiler; counting does it in Java."""


@contextmanager
def analysis_session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Start Spark to count with, and stop it.

    Spark's own log is off, stack traces and all: what fails is raised, and told by us in a sentence.
    """
    from fedping.server_jobs.spark.session import spark_session
    from fedping.server_jobs.spark.settings import SparkSettings

    with spark_session(SparkSettings(master=master, app_name=name, driver_java_options=SECOND_COMPILER)) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session


def milliseconds(time: datetime | None) -> int | None:
    """Return a time given in UTC as milliseconds since 1970."""
    return None if time is None else int(time.replace(tzinfo=UTC).timestamp() * 1000)
