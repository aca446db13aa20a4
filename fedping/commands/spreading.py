"""The options of commands whose work Spark's executors can do, and the session for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from fedping.protocol import log
from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    from fedping.server_jobs.round import SparkEngine

spread_option = click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["numpy", "spark"]),
    default="numpy",
    show_default=True,
    help="Who does the work: this machine's processes, or Spark's executors. The result is the same to the last bit.",
)
spread_master_option = click.option(
    "--master", help="Spark's master URL, with --engine spark; without one, what spark-submit says, or local[*]."
)


@contextmanager
def spark_for(engine_name: str, master: str | None, command: str) -> Iterator[SparkEngine | None]:
    """Yield what runs simulations on Spark, and end it; None if the engine is another.

    SIGINT and SIGTERM end in order what is done meanwhile.

    Raises:
        UsageError: there is a master and no Spark to have it.
        FedpingError: Spark is not installed.
    """
    if engine_name != "spark":
        if master is not None:
            raise click.UsageError("--master is of --engine spark; add that, or leave --master out")
        yield None
        return
    if find_spec("pyspark") is None:
        raise FedpingError(
            f"fedping {command} --engine spark needs the package pyspark, which is not installed; install it with: "
            'pip install "fedping[spark]", or leave --engine out'
        )
    from fedping.server_jobs.round import SparkEngine
    from fedping.server_jobs.shutdown import EndedBySignal, ended_by_signals
    from fedping.server_jobs.spark.session import spark_session
    from fedping.server_jobs.spark.settings import SparkSettings
    from fedping.server_jobs.spark.shipping import SIMULATING

    settings = SparkSettings(master=master, app_name=f"fedping-{command}", packages=SIMULATING)
    engine = SparkEngine(lambda: spark_session(settings))
    try:
        with ended_by_signals(), closing(engine):
            yield engine
    except EndedBySignal as ended:
        log.tell(ended.sentence, "info")
        click.get_current_context().exit(ended.exit_code)
