"""`fedping deploy files`: writes systemd units, nginx settings, alerts and manifests for a deployment."""

from __future__ import annotations

from pathlib import Path

import click

from fedping.options import LocalPath

_NO_HOST = "telemetry.example.org"
_NO_DOCS = "https://HOST/PATH/docs"


@click.group()
def deploy() -> None:
    """Write the files that run fedping on your own machine, or on Kubernetes."""


@deploy.command()
@click.argument("folder", metavar="DIR", type=LocalPath(file_okay=False))
@click.option("--study", type=LocalPath(dir_okay=False), help="The study's TOML file.  [default: an example, firefox]")
@click.option(
    "--host",
    default=_NO_HOST,
    help=f"Name under which clients reach this machine.  [default: a place to fill in, {_NO_HOST}]",
)
@click.option(
    "--data", default="/srv/fedping", show_default=True, help="Folder on the machine for store and landed pings."
)
@click.option("--user", default="fedping", show_default=True, help="User that runs ingest and rounds.")
@click.option(
    "--environment",
    help="Folder of the Python environment with fedping on the machine.  [default: the environment of this command]",
)
@click.option("--docs", default=_NO_DOCS, help="Address of the docs, for alerts.  [default: a placeholder]")
@click.option("--force", is_flag=True, help="Overwrite files with different contents.")
def files(folder: Path, study: Path | None, environment: str | None, force: bool, **names: str) -> None:
    """Write systemd units, nginx with TLS, Prometheus alerts and Kubernetes manifests to DIR.

    The README.md in DIR has the commands that install them, and the limits of open files, memory and connections. Safe
    to repeat; only --force overwrites a file that you have changed.
    """
    from fedping.deployment import Deployment, example_study, files_of, present_environment, write_files
    from fedping.protocol.settings_file import read_toml
    from fedping.protocol.study import study_from_toml

    if study is not None:
        read_toml(study, "study file")  # for the sentence about a file that can't be read
        data, name = study.read_bytes(), study_from_toml(study, new=True).name
    else:
        data, name = example_study(), "firefox"
    deployment = Deployment(study=name, study_file=data, environment=environment or present_environment(), **names)
    found = files_of(deployment)
    changed = write_files(found, folder, force=force)
    click.echo(f"{folder} has {len(found):,} files for study '{name}', {len(changed):,} of them new or changed")
    for option, example, what in (
        ("host", _NO_HOST, "the name under which clients reach this machine"),
        ("docs", _NO_DOCS, "the address of your copy of the docs"),
    ):
        if names[option] == example:
            places = ", ".join(path for path, data in sorted(found.items()) if example.encode() in data)
            click.echo(
                f"note: {example} is a placeholder in {places}; give {what} with --{option}, and --force to write "
                "these files again"
            )
    click.echo(f"Next: read {folder / 'README.md'}, for the commands that install these files")
