"""`fedping dashboard`: the page to watch studies, read results and run experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.dashboard_options import at, dashboard_options, dashboard_settings
from fedping.options import journal_of, journal_option, landing_option, log_format_option, store_option
from fedping.protocol.log import say

if TYPE_CHECKING:
    from fedping.protocol.location import Place


@click.command()
@store_option
@landing_option
@journal_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port to listen on.")
@dashboard_options
@log_format_option
def dashboard(
    store_path: Place,
    landing: Place,
    journal: Path | None,
    host: str,
    port: int,
    **rest: Any,
) -> None:
    """Serve the pages to watch studies live, read their results, and describe, start and compare experiments.

    Visitors need a token: the one in --token-file or FEDPING_DASHBOARD_TOKEN, otherwise one that the dashboard makes
    and prints as part of its address. A browser that has opened that address stays logged in. Stopping the dashboard
    does not stop the runs that were started from it.
    """
    from fedping.dashboard.application import prepare, serve

    settings = dashboard_settings(
        store=store_path,
        landing=landing,
        journal=journal_of(journal, landing),
        host=host,
        port=port,
        **rest,
    )
    prepare(settings)
    serve(settings, ready=lambda: say(f"The dashboard is at {at(settings)}. Ctrl-C stops it; runs continue."))
