"""`fedping audit join`: attacks on an institution's own table, to show what a study's author could reconstruct."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.options import LocalPath, json_option

if TYPE_CHECKING:
    from fedping.experiments.privacy.rows.audit import Report
    from fedping.protocol.study import Study


@click.command()
@click.argument("study_file", type=LocalPath(dir_okay=False))
@click.option("--data", type=LocalPath(), required=True, help="Your table, as for fedping join.")
@click.option("--label", metavar="COLUMN", help="The column that the model predicts.  [default: that of --columns]")
@click.option(
    "--columns",
    type=LocalPath(dir_okay=False),
    help="File of the columns that all institutions agreed on.  [default: columns as they are]",
)
@click.option("--line", "only", help="The line to attack.  [default: the study's only one]")
@click.option("--epsilon", type=click.FloatRange(0.01, 100), default=3.0, show_default=True, help="Protection to try.")
@click.option(
    "--delta",
    type=click.FloatRange(1e-12, 0.5, max_open=True),
    help=("The delta of --epsilon.  [default: n^-1.1 of n rows]"),
)
@click.option(
    "--versions",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help=("Number of versions that are answered."),
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Time limit of each attack (without protection, and with it) and of the proof.",
)
@click.option(
    "--runs",
    type=click.IntRange(20, 100_000),
    default=2000,
    show_default=True,
    help="Maximum number of answers with a row, and without it, for the proof of a lower bound on epsilon.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attacks.")
@json_option
def join(
    study_file: Path,
    data: Path,
    label: str | None,
    columns: Path | None,
    only: str | None,
    epsilon: float,
    delta: float | None,
    versions: int,
    seconds: float,
    runs: int,
    seed: int,
    as_json: bool,
) -> None:
    """Attack your own table as the author of STUDY_FILE could, and count the rows that can be reconstructed.

    STUDY_FILE is the operator's TOML file, or the study.json that the server sends to clients
    (https://ADDRESS/models/STUDY/study.json).

    The author chooses the weights. Each attack runs twice: on unprotected updates, and on updates as 'fedping join'
    protects them. All data stays on this machine, and the table's ledger is not charged. Exits with 1 if protected
    updates reveal more rows than chance would, or more than they claim.
    """
    from fedping.client_sim.joining.columns import read_columns
    from fedping.experiments.privacy.rows.audit import Plan, audit_of_line, target_of
    from fedping.protocol.errors import FedpingError, InvalidSettings
    from fedping.protocol.row_privacy import usual_delta
    from fedping.terminal import status

    study = _read_study(study_file)
    if only is None and len(study.lines) > 1:
        raise InvalidSettings(
            f"study '{study.name}' has the lines {', '.join(each.name for each in study.lines)}; choose one with --line"
        )
    line = study.lines[0] if only is None else study.line(only)
    agreed = None if columns is None else read_columns(columns)
    model, table = target_of(study, line, data, label, agreed)
    plan = Plan(versions, epsilon, usual_delta(len(table.y)) if delta is None else delta, seconds, runs)
    with status("attacking") as set_status:
        report = audit_of_line(study, line, model, table, plan, seed, set_status)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, data, runs)
    if not report.holds:
        raise FedpingError(
            f"line '{line.name}' of study '{study.name}': protected answers reveal more than claimed. Repeat the "
            "audit with another --seed; if the result is the same, don't join with this program, and report it."
        )


def _read_study(file: Path) -> Study:
    """Return the study of a TOML file, or of the JSON that clients fetch, which has no pipeline."""
    from fedping.protocol.study import Line, PublicStudy, Study, study_from_toml

    if file.suffix != ".json":
        return study_from_toml(file, new=True)

    import msgspec

    from fedping.protocol.errors import InvalidSettings

    try:
        study = msgspec.json.decode(file.read_bytes(), type=PublicStudy)
    except OSError as error:
        raise InvalidSettings(f"cannot read the study file {file}: {error.strerror}; check the path") from error
    except msgspec.MsgspecError as error:
        raise InvalidSettings(
            f"the study file {file} is not the study.json that a server sends to clients: {error}; fetch it again"
        ) from error
    lines = (
        Line(name=line.name, spec=line.spec, training=line.training, upload=line.upload, privacy=line.privacy)
        for line in study.lines
    )
    return Study(name=study.name, pings=study.pings, arms=study.arms, lines=tuple(lines))


def _print(report: Report, data: Path, runs: int) -> None:
    click.echo(
        f"{report.study}/{report.line}: {report.model}, {report.numbers:,} numbers an update, training "
        f"'{report.training}'; {report.rows:,} rows of {data}, {report.versions:,} versions"
    )
    if report.noise is not None:
        click.echo(f"  in a sum with noise {report.noise:g}, where everything but this table is known")
    click.echo("  rows reconstructed exactly without protection    protected    by chance")
    for each in report.attacks:
        if not each.why_not:
            of = f"{each.rows:,} of {each.tried:,}"
            click.echo(f"    {each.attack:<22} {of:>18} {each.protected:>15,} {each.protected_chance:>12,}")
    for each in report.attacks:
        if each.late:
            click.echo(f"    {each.attack}: the time limit was reached; a larger --seconds may reconstruct more rows")
    for each in report.attacks:
        if each.refused[0]:
            times = "once" if each.refused[0] == 1 else f"{each.refused[0]:,} times"
            click.echo(f"    {each.attack}: without protection, the program rejected the request {times}")
    for each in report.attacks:
        if each.why_not:
            click.echo(f"    {each.attack} does not apply: {each.why_not}")
    click.echo(
        f"  protected: epsilon {report.epsilon:g} is claimed (delta {report.delta:.2g}), at least "
        f"{report.proven_epsilon:.3g} is proven ({report.runs:,} answers with a row, as many without; 95 % confidence)"
        + ("; the time limit was reached, and more answers would prove more" if report.runs < runs else "")
    )
