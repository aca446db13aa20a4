"""`fedping privacy`: what a guarantee costs, what has been spent of it, what it says, and the key of a line's coins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fedping.options import LocalPath, json_option, store_option

if TYPE_CHECKING:
    from fedping.protocol.location import Place


@click.group()
def privacy() -> None:
    """Private lines: plan a guarantee, see what is spent of it, read a study's card, make a key."""


@privacy.command()
@click.option("--clients", type=click.IntRange(2), required=True, help="How many clients there are about.")
@click.option(
    "--sampling",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The share of them that counts in a round, by a secret coin.",
)
@click.option("--contributions", type=click.IntRange(1), help="To how many rounds a client contributes at most.")
@click.option("--rounds", type=click.IntRange(1, 1_000_000), help="How many rounds there are to be.")
@click.option("--epsilon", type=click.FloatRange(0, 100, min_open=True), help="The guarantee of all rounds together.")
@click.option(
    "--delta", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="[default: clients to the power of -1.1]"
)
@click.option("--noise", type=click.FloatRange(0, min_open=True), help="The noise multiplier.")
@click.option("--weights", type=click.IntRange(1), default=22, show_default=True, help="How many weights get noise.")
@click.option("--shared", is_flag=True, help="The line is one of shares: each of two servers adds the noise.")
@json_option
def plan(
    clients: int,
    sampling: float,
    contributions: int | None,
    rounds: int | None,
    epsilon: float | None,
    delta: float | None,
    noise: float | None,
    weights: int,
    shared: bool,
    as_json: bool,
) -> None:
    """PLAN a private line: two of --rounds, --epsilon and --noise give the third, and what learning keeps.

    It takes some seconds where clients are sampled. A plan that noise would win is refused.
    """
    from fedping.server_jobs.privacy.planning import planned, refuse_lost
    from fedping.terminal import status

    with status("counting what rounds cost"):
        made = planned(
            population=clients,
            weights=weights,
            sampling=sampling,
            rounds=rounds,
            contributions=contributions,
            epsilon_=epsilon,
            delta=delta,
            noise_multiplier=noise,
            shared=shared,
        )
    refuse_lost(made)
    if as_json:
        more = {"per_round": made.per_round, "ratio": made.ratio, "clients_needed": made.clients_needed}
        click.echo(msgspec.json.encode({**msgspec.to_builtins(made), **more, "outlook": made.outlook}).decode())
        return
    by = " by each of two servers" if shared else ""
    often = "" if made.contributions is None else f", each in {made.contributions:,} at most"
    click.echo(
        f"{made.population:,} clients, about {made.per_round:,.0f} in each of {made.rounds:,} rounds{often}\n"
        f"guarantee         epsilon = {made.epsilon:.4g}, delta = {made.delta:.2g}, for all rounds together\n"
        f"noise multiplier  {made.noise_multiplier:.4g}{by}; over the clients of a round {made.ratio:.2g}\n"
        f"learning keeps    {made.outlook}\n"
        f"with this noise   {made.clients_needed:,} clients a round keep at least 95 %"
    )


@privacy.command()
@click.argument("study", required=False)
@store_option
@json_option
def spent(study: str | None, store_path: Place, as_json: bool) -> None:
    """Show what private lines have SPENT, of a STUDY or of the whole store: epsilon so far, and rounds left."""
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
        click.echo("no line here is private" if study is None else f"no line of study '{study}' is private")
        return
    click.echo(f"{'study':<24}  {'line':<16}  {'rounds':>7}  {'left':>7}  {'epsilon':>9}  {'of':>7}  {'delta':>8}")
    for each in lines:
        left = "" if each.rounds_left is None else f"{each.rounds_left:,}"
        row = f"{each.study:<24}  {each.line:<16}  {each.releases:>7,}  {left:>7}  "
        if each.epsilon is None and each.ping_epsilon is None:
            click.echo(f"{row}{'none':>9}, for the sums of two servers have no noise")
        elif each.epsilon is None:
            click.echo(f"{row}{each.ping_epsilon:>9.4g} a ping, by noise of the client's own")
        else:
            click.echo(f"{row}{each.epsilon:>9.4g}  {each.most:>7g}  {each.delta:>8.2g}")
    counted = [each for each in lines if each.epsilon is not None]
    if counted:
        beside = "" if len(counted) == len(lines) else ", beside what each ping to the others costs"
        click.echo(f"a client that is in all of them: epsilon = {total.epsilon:.4g}, delta = {total.delta:.2g}{beside}")


@privacy.command()
@click.argument("study")
@store_option
@json_option
def card(study: str, store_path: Place, as_json: bool) -> None:
    """Show the privacy CARD of a STUDY of the store, or of a study file: who trusts whom, what is guaranteed."""
    from fedping.model_store.store import open_store
    from fedping.protocol.study import study_from_toml
    from fedping.server_jobs.privacy.card import as_document, card_of
    from fedping.server_jobs.warm_start import start_version

    if study.endswith(".toml"):
        made = card_of(study_from_toml(Path(study)))
    else:
        store = open_store(store_path)
        made = card_of(the_study := store.study(study), start_version(store, the_study))
    click.echo(msgspec.json.encode(as_document(made)).decode() if as_json else made.text)


@privacy.command()
@click.argument("file", type=LocalPath(dir_okay=False))
def key(file: Path) -> None:
    """Make a new key in FILE, for 'fedping round --privacy-key FILE' of lines with 'sampling', or a second server.

    The key decides by secret coins which clients count in a round. A line keeps the one that its first round had. Keep
    it outside of store and landing folder, and for yourself: a sample hides nobody from those who have the key. Where
    there is a second server, the helper, requests to it are signed with what follows from the key.
    """
    from fedping.server_jobs.privacy.keys import make_key

    make_key(file)
    click.echo(
        f"{file}: a new key, which only you can read; keep a copy, for a line takes no other after its first round"
    )


@privacy.command()
@click.argument("file", type=LocalPath(dir_okay=False))
def identity(file: Path) -> None:
    """Print the IDENTITY of whoever signs requests to helpers with the key in FILE, for the helper's operator."""
    from fedping.server_jobs.privacy.keys import leader_identity, read_key

    click.echo(leader_identity(read_key(file)))
