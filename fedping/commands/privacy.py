"""`fedping privacy`: plan and track privacy budgets, show a study's privacy card, create its key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedping.options import LocalPath, json_option, store_option

if TYPE_CHECKING:
    from fedping.protocol.location import Place


@click.group()
def privacy() -> None:
    """Private lines: plan and track privacy budgets, show a study's privacy card, create a key."""


@privacy.command()
@click.option("--clients", "population", type=click.IntRange(2), required=True, help="Approximate number of clients.")
@click.option(
    "--sampling",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the clients that a round samples in secret.",
)
@click.option("--contributions", type=click.IntRange(1), help="Maximum number of rounds that a client contributes to.")
@click.option("--rounds", type=click.IntRange(1, 1_000_000), help="Number of rounds.")
@click.option(
    "--epsilon",
    "epsilon_",
    type=click.FloatRange(0, 100, min_open=True),
    help="The epsilon of the guarantee, for all rounds together.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The delta of the guarantee.  [default: clients to the power of -1.1]",
)
@click.option("--noise", "noise_multiplier", type=click.FloatRange(0, min_open=True), help="The noise multiplier.")
@click.option("--weights", type=click.IntRange(1), default=22, show_default=True, help="Number of weights with noise.")
@click.option("--shared", is_flag=True, help="Plan for two servers, each of which adds the noise.")
@json_option
def plan(as_json: bool, **options: Any) -> None:
    """Plan a private line: from two of --rounds, --epsilon and --noise, compute the third and the effect on learning.

    It takes some seconds if clients are sampled. A plan with too much noise for learning is rejected.
    """
    from fedping.server_jobs.privacy.planning import planned, refuse_lost
    from fedping.terminal import status

    with status("computing the cost of rounds"):
        result = planned(**options)
    refuse_lost(result)
    if as_json:
        more = {"per_round": result.per_round, "ratio": result.ratio, "clients_needed": result.clients_needed}
        click.echo(msgspec.json.encode({**msgspec.to_builtins(result), **more, "outlook": result.outlook}).decode())
        return
    servers = " by each of two servers" if options["shared"] else ""
    often = "" if result.contributions is None else f", each in {result.contributions:,} at most"
    click.echo(
        f"{result.population:,} clients, about {result.per_round:,.0f} in each of {result.rounds:,} rounds{often}\n"
        f"guarantee         epsilon = {result.epsilon:.4g}, delta = {result.delta:.2g}, for all rounds together\n"
        f"noise multiplier  {result.noise_multiplier:.4g}{servers}; over the clients of a round {result.ratio:.2g}\n"
        f"learning keeps    {result.outlook}\n"
        f"with this noise   {result.clients_needed:,} clients a round keep at least 95 %"
    )


@privacy.command()
@click.argument("study", required=False)
@store_option
@json_option
def spent(study: str | None, store_path: Place, as_json: bool) -> None:
    """Show the spent budget of the private lines of a STUDY, or of the store: epsilon so far, and rounds left."""
    from fedping.model_store.store import open_store
    from fedping.server_jobs.privacy.budget import spent_by, together

    store = open_store(store_path)
    studies = [store.study(name) for name in ([study] if study else store.studies.names())]
    lines = [spent_by(store, each, line) for each in studies for line in each.lines if line.privacy is not None]
    total = together(lines)
    if as_json:
        click.echo(msgspec.json.encode({"lines": lines, "together": total}).decode())
        return
    if not lines:
        click.echo("this store has no private line" if study is None else f"study '{study}' has no private line")
        return
    click.echo(f"{'study':<24}  {'line':<16}  {'rounds':>7}  {'left':>7}  {'epsilon':>9}  {'of':>7}  {'delta':>8}")
    for each in lines:
        left = "" if each.rounds_left is None else f"{each.rounds_left:,}"
        row = f"{each.study:<24}  {each.line:<16}  {each.releases:>7,}  {left:>7}  "
        if each.epsilon is None and each.ping_epsilon is None:
            click.echo(f"{row}{'none':>9}, because the sums of its two servers have no noise")
        elif each.epsilon is None:
            click.echo(f"{row}{each.ping_epsilon:>9.4g} a ping, by the client's own noise")
        else:
            click.echo(f"{row}{each.epsilon:>9.4g}  {each.most:>7g}  {each.delta:>8.2g}")
    counted = [each for each in lines if each.epsilon is not None]
    if counted:
        more = "" if len(counted) == len(lines) else ", plus the cost of each ping to the other lines"
        click.echo(f"a client in all of these lines: epsilon = {total.epsilon:.4g}, delta = {total.delta:.2g}{more}")


@privacy.command()
@click.argument("study")
@store_option
@json_option
def card(study: str, store_path: Place, as_json: bool) -> None:
    """Show the privacy card of a STUDY in the store, or of a study file: who trusts whom, what is guaranteed."""
    from fedping.client_sim.learning.study_files import study_from_toml
    from fedping.model_store.store import open_store
    from fedping.server_jobs.privacy.card import as_document, card_of
    from fedping.server_jobs.warm_start import start_version

    if study.endswith(".toml"):
        document = card_of(study_from_toml(Path(study)))
    else:
        store = open_store(store_path)
        document = card_of(the_study := store.study(study), start_version(store, the_study))
    click.echo(msgspec.json.encode(as_document(document)).decode() if as_json else document.text)


@privacy.command()
@click.argument("file", type=LocalPath(dir_okay=False))
def key(file: Path) -> None:
    """Create a new key in FILE, for 'fedping round --privacy-key FILE' of lines with 'sampling' or a second server.

    The key samples in secret the clients that count in a round. A line keeps the key of its first round. Keep it
    secret, and outside the store and the landing folder: readers of the key know who is sampled. A key derived from it
    signs requests to the helper (second server).
    """
    from fedping.server_jobs.privacy.keys import make_key

    make_key(file)
    click.echo(f"{file}: a new key, readable only by you. Keep a copy: a line can't change its key.")


@privacy.command()
@click.argument("file", type=LocalPath(dir_okay=False))
def identity(file: Path) -> None:
    """Print the identity of the leader that signs with the key in FILE, for the helper's operator."""
    from fedping.server_jobs.privacy.keys import leader_identity, read_key

    click.echo(leader_identity(read_key(file)))
