"""`fedping compare`: two variants of laboratory experiments over the seeds that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fedping.options import json_option
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from fedping.experiments.laboratory.comparing import Comparison


@click.command()
@click.argument("a")
@click.argument("b")
@json_option
def compare(a: str, b: str, as_json: bool) -> None:
    """Show how B differs from A: folders of `fedping simulate` or `sweep`, or FOLDER:VARIANT if a folder has several.

    Differences are of the final models' metrics, paired by seed, with the 95 % t interval of their mean. Baselines are
    variants too: centralised, local, start.
    """
    from fedping.experiments.laboratory.comparing import chosen, compared

    comparison = compared(chosen(a), chosen(b))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(comparison).decode())
        return
    _print(comparison)


def _print(comparison: Comparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fedping.commands.laboratory import wide_console
    from fedping.experiments.laboratory.summary import NO_QUALITY

    console: Console = wide_console()
    table = Table(box=box.SIMPLE_HEAD, title=f"a: {comparison.a}\nb: {comparison.b}", title_justify="left")
    for heading in ("split", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("a", "b", "b - a", "b - a, %", "better"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in comparison.differences:
        half = each.difference.half
        digits = ",.0f" if each.split == "bytes" else ".4f"
        apart = f"{each.difference.mean:+{digits}}" + ("" if half is None else f" ±{half:{digits}}")
        percent = "" if each.percent is None else f"{each.percent:+.3g}"
        numbers = (with_minus(number) for number in (f"{each.a:{digits}}", f"{each.b:{digits}}", apart, percent))
        undecided = "" if each.split in NO_QUALITY else "not shown"
        table.add_row(each.split, each.metric, *numbers, each.better or undecided)
    console.print(table)
    count = len(comparison.seeds)
    told = f"paired by {count} seeds, 95 % t interval" if count > 1 else "one seed, so there is no interval"
    console.print(f"{told}; one is better if the interval leaves out 0, for each metric by itself", highlight=False)
    for note in comparison.notes or ():
        console.print(note, highlight=False)
