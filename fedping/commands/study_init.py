"""`fedping study init`: writes a folder with a first study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedping.options import LocalPath


def _list(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from fedping.experiments.first_study import TEMPLATES

    width = max(map(len, TEMPLATES))
    click.echo("\n".join(f"{name:<{width}}  {words}" for name, words in TEMPLATES.items()))
    context.exit()


class _Template(click.ParamType[str]):
    """Option type of a template's name; the list of templates is read only if a name is given."""

    name = "template"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from fedping.experiments.first_study import TEMPLATES

        if value not in TEMPLATES:
            self.fail(f"unknown template '{value}'; choose one of {', '.join(TEMPLATES)}", param, ctx)
        return str(value)


@click.command()
@click.argument("name")
@click.option(
    "--template",
    type=_Template(),
    default="shop",
    show_default=True,
    metavar="TEMPLATE",
    help="Template: shop, feed, autocomplete or prediction; --list describes them.",
)
@click.option("--folder", type=LocalPath(), help="Folder to create.  [default: NAME]")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the templates.")
def init(name: str, template: str, folder: Path | None) -> None:
    """Create a folder with a first study called NAME: its file, items, a rehearsal and a web page that takes part.

    Its README.md has the commands, from the check to the verdict. The browser client is included, so the page needs no
    other server. Change what you like: the template is not read again.
    """
    from fedping.experiments.first_study import write_first_study

    target = Path(name) if folder is None else folder
    files = write_first_study(name, template, target)
    click.echo(f"{target}: created the study '{name}' from the template '{template}': {', '.join(files)}, and fedping/")
    click.echo(f"Next: cd {target} and read README.md; the first step is 'fedping study check study.toml'")
