"""`fedping audit`: attacks of our own on what a study promises its clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fedping.options import LocalPath, json_option

if TYPE_CHECKING:
    from fedping.experiments.privacy.auditing import Audit


@click.command()
@click.argument("study_file", type=LocalPath(dir_okay=False))
@click.option("--line", "only", help="The line to attack; all lines of the study without.")
@click.option(
    "--runs", type=click.IntRange(20), default=1000, show_default=True, help="Rounds with a canary, and without one."
)
@click.option(
    "--clients",
    type=click.IntRange(500, 1_000_000),
    default=12_000,
    show_default=True,
    help="Simulated clients whose pings are guessed at, of ranking models.",
)
@click.option("--per-round", type=click.IntRange(2), default=100, show_default=True, help="Clients of a round.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of clients and attackers.")
@json_option
def audit(
    study_file: Path, only: str | None, runs: int, clients: int, per_round: int, seed: int, as_json: bool
) -> None:
    """Attack the lines of STUDY_FILE, to see whether noise keeps what they promise, and what single pings tell.

    It runs rounds of its own here, with invented clients; nothing of a running study is touched. Exit code 1 means
    that a promise is broken.
    """
    from fedping.experiments.privacy.auditing import Effort
    from fedping.experiments.privacy.auditing import audit as audited
    from fedping.protocol.errors import FedpingError
    from fedping.protocol.study import study_from_toml
    from fedping.server_jobs.privacy.budget import with_noise
    from fedping.terminal import status

    effort = Effort(runs=runs, clients=clients, per_round=per_round, seed=seed)
    with status("deriving the noise") as tell:
        study = with_noise(study_from_toml(study_file, new=True))
        lines = [study.line(only)] if only else list(study.lines)
        audits = [audited(study, line, effort, watch=tell) for line in lines]
    if as_json:
        click.echo(msgspec.json.encode(audits).decode())
    else:
        for each in audits:
            _print(each)
    broken = [each.line for each in audits if not each.holds]
    if broken:
        raise FedpingError(
            f"line '{broken[0]}' of study '{study.name}' does not keep what it promises: what was proven is above what "
            "is claimed, or its coins are uneven; do not run it, and report this"
        )


def _print(found: Audit) -> None:
    click.echo(f"{found.study}/{found.line}")
    if (release := found.release) is not None:
        click.echo(
            f"  a round, certain to sample the canary: epsilon = {release.claimed:.3g} is claimed (delta = "
            f"{release.delta:.2g}), at least {release.proven:.3g} is proven ({release.runs:,} runs with a canary, as "
            "many without; 95 % confidence)"
        )
        if release.one_run is not None:
            click.echo(f"  one round with many canaries: at least {release.one_run:.3g} is proven")
        if release.coins is not None:
            click.echo(f"  coins: independent ones are as uneven with probability {release.coins:.2g}")
    if found.unprotected:
        click.echo("  what one ping tells of the chosen page (AUC; 0.5 is chance)      as sent          not private")
    for name, open_ in found.unprotected.items():
        sent = found.attributes.get(name)
        told = "" if sent is None else f"{sent.auc:.2f} ({sent.low:.2f}-{sent.high:.2f})"
        click.echo(f"    {name:<58}  {told:<16} {open_.auc:.2f} ({open_.low:.2f}-{open_.high:.2f})")
    if (member := found.membership) is not None:
        click.echo(f"  who took part, from a published step: AUC {member.auc:.2f} ({member.low:.2f}-{member.high:.2f})")
