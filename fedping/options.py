"""Options and arguments that several subcommands share, so that they are spelled and explained once."""

from __future__ import annotations

from pathlib import Path

import click

store_option = click.option(
    "--store",
    "store_path",
    type=click.Path(path_type=Path),
    default=Path("store"),
    show_default=True,
    envvar="FEDPING_STORE",
    show_envvar=True,
    help="Folder of the model store.",
)

landing_option = click.option(
    "--landing",
    type=click.Path(path_type=Path),
    default=Path("landing"),
    show_default=True,
    envvar="FEDPING_LANDING",
    show_envvar=True,
    help="Folder where pings land in Parquet.",
)

journal_option = click.option(
    "--journal",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of ingest's journal, on a local disk.  [default: .journal in the landing folder]",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of text.")
