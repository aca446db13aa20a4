"""`fedping audit`: attacks that test the privacy guarantees of a study's lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedping.options import LocalPath, WithSubcommands, json_option

if TYPE_CHECKING:
    from fedping.experiments.privacy.auditing import Audit


@click.command(cls=WithSubcommands, subcommands={"join": ("audit_join", "join")})
@click.argument("study_file", type=LocalPath(dir_okay=False))
@click.option("--line", "only", help="The line to attack.  [default: all lines of the study]")
@click.option(
    "--runs",
    type=click.IntRange(20),
    default=1000,
    show_default=True,
    help=("Number of rounds with a canary, and of rounds without."),
)
@click.option(
    "--clients",
    type=click.IntRange(500, 1_000_000),
    default=12_000,
    show_default=True,
    help="Number of simulated clients of ranking models, whose pings the attacker guesses.",
)
@click.option(
    "--per-round", type=click.IntRange(2), default=100, show_default=True, help=("Number of clients in a round.")
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of clients and attackers.")
@json_option
def audit(study_file: Path, only: str | None, as_json: bool, **effort: Any) -> None:
    """Test the privacy guarantees of the lines of STUDY_FILE by attacks, and measure what single pings reveal.

    The attacks run on this machine with simulated clients; a running study is not affected. Exits with 1 if a guarantee
    is broken.

    'fedping audit join STUDY_FILE --data TABLE' attacks the table of an institution instead.
    """
    from fedping.client_sim.learning.study_files import study_from_toml
    from fedping.experiments.privacy.auditing import Effort
    from fedping.experiments.privacy.auditing import audit as audited
    from fedping.protocol.errors import FedpingError
    from fedping.server_jobs.privacy.budget import with_noise
    from fedping.terminal import status

    with status("deriving the noise") as set_status:
        study = with_noise(study_from_toml(study_file, new=True))
        lines = [study.line(only)] if only else list(study.lines)
        audits = [audited(study, line, Effort(**effort), watch=set_status) for line in lines]
    if as_json:
        click.echo(msgspec.json.encode(audits).decode())
    else:
        for each in audits:
            _print(each)
    broken = [each.line for each in audits if not each.holds]
    if broken:
        raise FedpingError(
            f"line '{broken[0]}' of study '{study.name}' breaks its guarantee: the proven epsilon is above the "
            "claimed one, or its random samples are biased. Don't run the line, and report this."
        )


def _print(report: Audit) -> None:
    click.echo(f"{report.study}/{report.line}")
    if (release := report.release) is not None:
        click.echo(
            f"  a round that surely samples the canary: epsilon = {release.claimed:.3g} is claimed (delta = "
            f"{release.delta:.2g}), at least {release.proven:.3g} is proven ({release.runs:,} runs with a canary, as "
            "many without; 95 % confidence)"
        )
        if release.one_run is not None:
            click.echo(f"  one round with many canaries: at least {release.one_run:.3g} is proven")
        if release.coins is not None:
            click.echo(f"  sampling: unbiased samples deviate this much with probability {release.coins:.2g}")
    if report.unprotected:
        click.echo("  what a ping reveals about the choice (AUC; 0.5 is chance)     as sent          not private")
    for name, public in report.unprotected.items():
        private = report.attributes.get(name)
        as_sent = "" if private is None else f"{private.auc:.2f} ({private.low:.2f}-{private.high:.2f})"
        click.echo(f"    {name:<58}  {as_sent:<16} {public.auc:.2f} ({public.low:.2f}-{public.high:.2f})")
    if (member := report.membership) is not None:
        click.echo(
            f"  membership, guessed from a published step: AUC {member.auc:.2f} ({member.low:.2f}-{member.high:.2f})"
        )
