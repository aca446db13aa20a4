"""`fedping join status`: the answers of an institution's folder, with the digests of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.options import LocalPath, json_option

if TYPE_CHECKING:
    from fedping.client_sim.joining.folder import Joined, Sent, StateFolder

DIGITS = 16
"""Number of digits of a digest in text output."""


@click.command()
@click.argument("state", type=LocalPath(file_okay=False))
@click.option(
    "--last", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Maximum number of answers to show."
)
@json_option
def status(state: Path, last: int, as_json: bool) -> int:
    """Show the answers of 'fedping join' in the folder STATE, with the digest of each version's weights.

    Compare these digests with other institutions: a server that sends one institution different weights can reconstruct
    that institution's part, even of a sum. The command only reads the folder, and can run next to 'fedping join'.
    """
    from fedping.client_sim.joining.folder import StateFolder
    from fedping.protocol.errors import InvalidSettings

    folder = StateFolder(state, 0)
    joined = folder.joined
    if joined is None:
        raise InvalidSettings(
            f"{state} isn't a state folder of 'fedping join', or has not joined a study yet; give the folder of its "
            "--state, by default joined-STUDY"
        )
    answers = list(islice(_answers(folder), last))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(_facts(folder, joined, answers)).decode())
    else:
        _print(folder, joined, answers)
    return 0


def _answers(folder: StateFolder) -> Iterator[Sent]:
    """Yield the newest line about each ping, the newest ping first."""
    seen = set()
    for sent in folder.log():
        if sent.document_id not in seen:
            seen.add(sent.document_id)
            yield sent


def _facts(folder: StateFolder, joined: Joined, answers: list[Sent]) -> dict[str, Any]:
    consent, progress = joined.consent, folder.progress
    return {
        "study": joined.study,
        "line": joined.line,
        "protected": None if consent is None else consent.protected,
        "epsilon": consent.epsilon if consent is not None and consent.protected else None,
        "noise": consent.noise if consent is not None and consent.protected else None,
        "institutions": consent.institutions if consent is not None else 0,
        "colluding": consent.colluding if consent is not None else 0,
        "versions": None if consent is None else consent.versions,
        "version": progress.version,
        "accepted": progress.sent,
        "waiting": None if (ping := folder.waiting) is None else ping.version,
        "answers": answers,
    }


def _print(folder: StateFolder, joined: Joined, answers: list[Sent]) -> None:
    from fedping.protocol.notation import format_count

    facts = _facts(folder, joined, answers)
    if facts["protected"]:
        how = f"each row is protected by epsilon {facts['epsilon']:g}, over {facts['versions']:,} versions at most"
    else:
        how = "updates are not protected" if facts["protected"] is not None else "protection is not decided yet"
    if facts["institutions"]:
        how += (
            f", in sums of {facts['institutions']:,} institutions or more, as long as at most {facts['colluding']:,} "
            "of the others collude with the operator"
        )
    click.echo(f"study '{joined.study}', line {joined.line}: {how}")
    waits = "" if facts["waiting"] is None else f"; the ping of version {facts['waiting']:,} is waiting to be sent"
    up_to = f", up to version {facts['version']:,}" if facts["accepted"] else ""
    click.echo(f"{format_count(facts['accepted'], 'ping')} accepted{up_to}{waits}")
    for sent in answers:
        digest = f"weights {sent.weights[:DIGITS]}" if sent.weights else "weights unknown (sent by an older fedping)"
        why = f" ({sent.reason})" if sent.reason else ""
        click.echo(f"  version {sent.version:,}  {digest}  {sent.time}  {sent.outcome}{why}")
    if answers:
        click.echo("An honest server sends every institution the same weights of a version. Compare the digests.")
