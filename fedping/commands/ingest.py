"""`fedping ingest`: take pings over HTTP and land them in Parquet."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fedping.commands.dashboard import DashboardOptions, at, dashboard_options
from fedping.options import LocalPath, journal_of, journal_option, landing_option, log_format_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.log import say

if TYPE_CHECKING:
    from fedping.dashboard.settings import DashboardSettings
    from fedping.protocol.location import Place
    from fedping.server_jobs.ingest.operations import OperatorsListener
    from fedping.server_jobs.ingest.settings import IngestSettings

_MIB = 1024 * 1024
HERE = "127.0.0.1"
_LOCAL = (HERE, "localhost", "::1")


@click.command()
@store_option
@landing_option
@journal_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port to listen on.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help=("Number of worker processes, each pinned to a core."),
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Maximum number of batches and pages that a worker handles at a time.",
)
@click.option(
    "--compact-every",
    type=click.FloatRange(min=0.05),
    default=60.0,
    show_default=True,
    help="Seconds between writing accepted pings to Parquet.",
)
@click.option(
    "--roll-mib",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help=("... or after this many MiB of journal, if sooner."),
)
@click.option(
    "--max-ping-mib",
    type=click.IntRange(1, 256),
    help="Largest ping, alone or in a batch.  [default: --max-batch-mib]",
)
@click.option(
    "--max-batch-mib",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help=("Largest batch, in bytes as sent."),
)
@click.option(
    "--max-unpacked-mib", type=click.IntRange(1, 1024), default=64, show_default=True, help="Largest batch, unpacked."
)
@click.option(
    "--operations-port",
    type=click.IntRange(0, 65535),
    default=8082,
    show_default=True,
    help="Port for operators: /metrics, /__status__, /__flush__; 0 for any free one.",
)
@click.option(
    "--operations-host",
    default=HERE,
    show_default=True,
    help="Address of that port. Every program that reaches it can read the metrics and flush.",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(64, 65536),
    default=384,
    show_default=True,
    help="Memory for the large requests of a worker; requests beyond it get 503.",
)
@click.option(
    "--body-seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Time limit for a body to arrive, plus one second for every 16 KiB.",
)
@click.option(
    "--slow-bodies",
    type=click.IntRange(1, 1024),
    default=256,
    show_default=True,
    help="Number of unfinished bodies per worker; beyond it, the slowest are disconnected.",
)
@click.option(
    "--ticket-keys",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_TICKET_KEYS",
    show_envvar=True,
    help="File of ticket keys, for studies that need tickets; read again when it changes.",
)
@click.option(
    "--prefix-rate",
    type=click.FloatRange(min=0.1),
    help=(
        "Pings a second from one network (/24, or /48 of IPv6), with bursts of 30 seconds' worth; further pings get "
        "429.  [default: no limit]"
    ),
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="NETWORK",
    help=(
        "For --prefix-rate: address or network (10.0.0.0/8) of your proxies, whose X-Forwarded-For is trusted. May "
        "be repeated."
    ),
)
@click.option("--demo-page", is_flag=True, help="Serve a page at /demo/ to try a study.")
@click.option(
    "--dashboard", "dashboard_port", type=click.IntRange(1, 65535), help="Serve the dashboard too, on this port."
)
@click.option(
    "--dashboard-host", default="127.0.0.1", show_default=True, help="Address on which the dashboard listens."
)
@dashboard_options
@log_format_option
def ingest(dashboard_port: int | None, dashboard_host: str, **options: Any) -> int:
    """Accept pings over HTTP and land them in Parquet.

    A ping is on disk before it is answered with 200. Ctrl-C (or SIGTERM) stops ingest cleanly: open requests are
    answered, and all accepted pings are written to Parquet. A second Ctrl-C stops immediately; the next start lands the
    rest.

    Metrics, status and flush are on a separate port for operators, which only programs on this machine reach.

    --dashboard also serves the dashboard, from another process and port. Visitors need a token (see fedping dashboard);
    clients don't.
    """
    _import_numpy_without_threads()
    from fedping.server_jobs.ingest.backlog import ending, unlanded
    from fedping.server_jobs.ingest.operations import OperatorsListener
    from fedping.server_jobs.ingest.pages import page_files
    from fedping.server_jobs.ingest.supervisor import OPERATIONS, prepare, supervise

    for_dashboard = {name: options.pop(name) for name in DashboardOptions.names()}
    given = Options(**options)
    settings = given.settings
    if settings.operations_port in (settings.port, dashboard_port):
        raise InvalidSettings(f"--operations-port: port {settings.operations_port} is already in use; give another one")
    if settings.demo_page:
        page_files()
    pages = None
    if dashboard_port is None:
        _refuse_idle_options({"dashboard_host", *for_dashboard})
    else:
        pages = DashboardOptions(**for_dashboard).settings(
            store=settings.store,
            landing=settings.landing,
            journal=settings.journal,
            host=dashboard_host,
            port=dashboard_port,
        )
    processes = {} if pages is None else {"dashboard": _dashboard(pages, settings.port)}
    prepare(settings)
    if settings.prefix_rate is not None and not settings.trusted_proxies and settings.host in _LOCAL:
        say(
            f"--prefix-rate: on {settings.host} all pings arrive from a proxy on this machine, so they count as one "
            f"network. Name the proxy with --trusted-proxy {'::1' if settings.host == '::1' else '127.0.0.1'}, and "
            "have it send X-Forwarded-For.",
            "warning",
        )
    listener = OperatorsListener(settings)
    _say_addresses(settings, listener, pages)
    _say_recovered(settings)
    code = supervise(settings, beside={OPERATIONS: listener.serve, **processes})
    say(ending(settings, emptied=code == 0), "info" if code == 0 else "warning")
    return code or bool(unlanded(settings))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command except those of the dashboard, by their names in Python; see their help."""

    store_path: Place
    landing: Place
    journal: Path | None
    host: str
    port: int
    workers: int
    threads: int
    compact_every: float
    roll_mib: int
    max_ping_mib: int | None
    max_batch_mib: int
    max_unpacked_mib: int
    operations_port: int
    operations_host: str
    memory_mib: int
    body_seconds: float
    slow_bodies: int
    ticket_keys: Path | None
    prefix_rate: float | None
    trusted_proxies: tuple[str, ...]
    demo_page: bool

    @property
    def settings(self) -> IngestSettings:
        """The settings of ingest."""
        from fedping.server_jobs.ingest.settings import IngestSettings, Limits

        limits = Limits(
            ping_bytes=None if self.max_ping_mib is None else self.max_ping_mib * _MIB,
            batch_bytes=self.max_batch_mib * _MIB,
            decompressed_bytes=self.max_unpacked_mib * _MIB,
            memory_bytes=self.memory_mib * _MIB,
            body_seconds=self.body_seconds,
        )
        return IngestSettings(
            store=self.store_path,
            landing=self.landing,
            journal=journal_of(self.journal, self.landing),
            host=self.host,
            port=self.port,
            workers=self.workers,
            threads=self.threads,
            slow_bodies=self.slow_bodies,
            compact_every=self.compact_every,
            roll_bytes=self.roll_mib * _MIB,
            limits=limits,
            demo_page=self.demo_page,
            operations_host=self.operations_host,
            operations_port=self.operations_port,
            ticket_keys=self.ticket_keys,
            prefix_rate=self.prefix_rate,
            trusted_proxies=_networks(self.trusted_proxies, self.prefix_rate),
        )


def _networks(texts: tuple[str, ...], prefix_rate: float | None) -> tuple[IPv4Network | IPv6Network, ...]:
    if texts and prefix_rate is None:
        raise InvalidSettings("--trusted-proxy needs --prefix-rate; add that, or remove the option")
    try:
        networks = tuple(map(ip_network, texts))
    except ValueError as error:
        raise InvalidSettings(f"--trusted-proxy: {error}; give an address, or a network such as 10.0.0.0/8") from error
    if any(network.prefixlen == 0 for network in networks):
        raise InvalidSettings("--trusted-proxy can't include all addresses; name your own proxies")
    return networks


def _import_numpy_without_threads() -> None:
    """Import NumPy without threads for matrix products: ingest doesn't need them, and its processes fork.

    OpenBLAS ends its threads before a fork, but the kernel may count a thread that is ending a moment longer.
    """
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        if before is None:
            del os.environ[name]  # programs that the dashboard starts may use more threads
        else:
            os.environ[name] = before


def _refuse_idle_options(names: set[str]) -> None:
    """Raise :class:`InvalidSettings` for dashboard options without --dashboard."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise InvalidSettings(f"{option.opts[0]} needs --dashboard; add that, or remove the option")


def _say_addresses(settings: IngestSettings, listener: OperatorsListener, pages: DashboardSettings | None) -> None:
    address = f"http://{settings.host}:{settings.port}"
    every = f"{settings.compact_every:g} s"
    say(f"Accepting pings on {address}; they land in {settings.landing} every {every}. Ctrl-C stops.")
    say(f"For operators: {listener.url} (/metrics, /__status__, /__heartbeat__, POST /__flush__)")
    if settings.demo_page:
        say(f"Demo page: {address}/demo/ (its pings count like any others)")
    if pages is not None:
        say(f"The dashboard: {at(pages)}")


def _say_recovered(settings: IngestSettings) -> None:
    """Log the number of pings that an earlier ingest accepted but did not land, if it left any segment."""
    from fedping.protocol.notation import format_count
    from fedping.server_jobs.ingest.backlog import recovered

    try:
        left = recovered(settings.journal)
    except OSError as error:  # the compactor tries again, and reports remaining segments
        say(f"Can't read all of the journal {settings.journal}: {error.strerror}.", "warning")
        return
    if left.segments:
        pings, segments = format_count(left.pings, "ping"), format_count(left.segments, "segment")
        say(
            f"Recovered {pings} in {segments} of the journal, accepted before the restart but not landed; they land "
            "now."
        )


def _dashboard(settings: DashboardSettings, ingest_port: int) -> Callable[[int], None]:
    """Return the function that serves the dashboard until the process of the given id ends.

    Raises:
        InvalidSettings: the dashboard has the port of ingest.
        CannotStart: the dashboard's port is taken, or the folder of runs cannot be written.
    """
    from fedping.dashboard.application import prepare, serve

    if settings.port == ingest_port:
        raise InvalidSettings(f"--dashboard: port {ingest_port} is used for pings; give another one")
    prepare(settings, "--dashboard")
    return lambda parent: serve(settings, parent)
