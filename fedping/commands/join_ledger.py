"""`fedping join ledger`: the spent and the remaining privacy budget of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.options import LocalPath, json_option

if TYPE_CHECKING:
    from fedping.client_sim.joining.ledger import Book, Ledger


@click.command()
@click.argument("data", type=LocalPath())
@click.option("--ledger", "path", type=LocalPath(dir_okay=False), help="The table's ledger.  [default: DATA.ledger]")
@click.option("--restored", is_flag=True, help="Record that a backup of the ledger was put back.")
@click.option(
    "--spent",
    type=click.FloatRange(0),
    metavar="EPSILON",
    help="Start a new ledger to replace a lost one; EPSILON is the most that was spent.",
)
@click.option("--epsilon", type=click.FloatRange(0.01, 100), help="With --spent: the budget.  [default: 3]")
@click.option(
    "--delta", type=click.FloatRange(1e-12, 0.5, max_open=True), help="With --spent: delta.  [default: n^-1.1]"
)
@json_option
def ledger(
    data: Path,
    path: Path | None,
    restored: bool,
    spent: float | None,
    epsilon: float | None,
    delta: float | None,
    as_json: bool,
) -> int:
    """Show the ledger of the table DATA: each study's pings, their cost, and the remaining budget.

    Checks the chain of entries and the ledger's copy. Exits with 1 if the ledger is lost, or both copies are damaged.
    """
    from fedping.client_sim.joining.ledger import Ledger, ledger_of

    if spent is None and (epsilon is not None or delta is not None):
        raise click.UsageError("--epsilon and --delta set the budget of a ledger that --spent begins; give --spent too")
    if restored and spent is not None:
        raise click.UsageError("use either --restored, after a backup was put back, or --spent, without a backup")
    of_table = ledger_of(data) if path is None else Ledger(path)
    if spent is not None:
        _state(of_table, data, spent, epsilon, delta)
    stale = of_table.stale()
    book = of_table.restored() if restored else of_table.read()
    if restored:
        click.echo(
            "recorded; with the next ping to each study, the ledger charges the versions that the backup may lack",
            err=True,
        )
    for path in stale:
        click.echo(
            f"fedping: warning: {path} is damaged, missing or incomplete; its other copy is used, and the next ping "
            "repairs it",
            err=True,
        )
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(_facts(of_table, book)).decode())
        return 0
    _print(of_table, book)
    return 0


def _state(ledger: Ledger, data: Path, spent: float, epsilon: float | None, delta: float | None) -> None:
    from fedping.client_sim.data.files import read_arrow
    from fedping.client_sim.joining.ledger import LedgerTrouble
    from fedping.protocol.errors import InvalidSettings
    from fedping.protocol.row_privacy import EPSILON, usual_delta

    if ledger.exists:
        try:
            ledger.read()
        except LedgerTrouble:
            pass
        else:
            raise InvalidSettings(f"the ledger {ledger.path} is intact and records the spent budget; remove --spent")
    of_rows = usual_delta(read_arrow(data).num_rows) if delta is None else delta
    ledger.state(EPSILON if epsilon is None else epsilon, of_rows, spent)


def _facts(ledger: Ledger, book: Book) -> dict[str, Any]:
    from fedping.protocol.row_privacy import epsilon_of

    epsilon, delta = book.budget
    return {
        "ledger": str(ledger.path),
        "entries": len(book.entries),
        "head": book.last,
        "epsilon": epsilon,
        "delta": delta,
        "spent_epsilon": book.spent_epsilon,
        "left_share": book.left / book.allowed,
        "refused": sum(entry.what == "refused" for entry in book.entries),
        "studies": [
            {
                "study": each.study,
                "versions": each.versions,
                "epsilon": epsilon_of(each.cost**0.5, delta),
                "share": each.cost / book.allowed,
            }
            for each in book.by_study()
        ],
    }


def _print(ledger: Ledger, book: Book) -> None:
    from fedping.client_sim.joining.ledger import ended
    from fedping.protocol.notation import format_count

    facts = _facts(ledger, book)
    click.echo(
        f"{ledger.path}: {facts['entries']:,} {'entry' if facts['entries'] == 1 else 'entries'}, chain "
        f"intact\nbudget of each row: epsilon {facts['epsilon']:g}, delta {facts['delta']:.2g}, over all "
        f"studies\nspent: epsilon {facts['spent_epsilon']:.3g}; {facts['left_share']:.1%} of the budget is left"
    )
    for study in facts["studies"]:
        name = f"study '{study['study']}'" if study["study"] else "stated by --spent"
        pings = f"{format_count(study['versions'], 'ping')}, " if study["study"] else ""
        click.echo(f"  {name}: {pings}epsilon {study['epsilon']:.3g}, {study['share']:.1%} of the budget")
    if facts["refused"]:
        click.echo(
            f"{format_count(facts['refused'], 'version')} arrived a second time with other weights and got no second "
            "answer; ask the studies' operators why"
        )
    if facts["left_share"] < 1e-9:
        click.echo(ended(book))
