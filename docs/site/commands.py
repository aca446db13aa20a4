"""Write ``docs/commands.md``, the page of all commands, from their help: ``python -m docs.site.commands``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from docs.site.contents import END, START, with_contents
from docs.site.markdown import cell, escaped
from fedping.main import cli

PAGE = Path(__file__).resolve().parents[1] / "commands.md"
HEAD = f"""\
# Commands

<!-- written by python -m docs.site.commands -->

Every command with its arguments, options and defaults, as `--help` prints them. [The reference](reference.md)
has what they print with `--json`, their [exit codes](reference.md#exit-codes) and the files that they read and write.

{START}
{END}
"""

_DEFAULT = re.compile(r"\[default:? (.*)\]\Z")
"""Pattern for a default that a help text states because only the command knows it."""
_ROOM = re.compile(r"[ \t]*\n[ \t]*")


def page() -> str:
    """Return the page's text."""
    context = click.Context(cli, info_name="fedping")
    return with_contents("\n".join([HEAD, *_group(cli, context, 2)]))


def _group(group: click.Group, context: click.Context, level: int) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield from _command(command, inner, level)
        if isinstance(command, click.Group):
            yield from _group(command, inner, level + 1)


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}\n"
    yield "```text\n" + " ".join([context.command_path, *command.collect_usage_pieces(context)]) + "\n```\n"
    yield _paragraphs(command.help or "")
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        yield "| option | | default |\n|---|---|---|"
        yield from (_row(option, context) for option in options)
        yield ""


def _row(option: click.Option, context: click.Context) -> str:
    extra = option.get_help_extra(context)
    value = "" if option.is_flag or option.count else " " + option.make_metavar(context).replace(" RANGE", "")
    names = ", ".join([*option.opts, *option.secondary_opts]) + value
    notes = [extra["range"]] if "range" in extra else []
    notes += [f"`{name}` in the environment" for name in extra.get("envvars", ())]
    said, *computed = _DEFAULT.split(option.help or "")
    text = " ".join([_plain(said).strip(), *(f"({note})" for note in notes)]).strip()
    default = "required" if "required" in extra else extra.get("default") or "".join(computed)
    return f"| `{cell(names)}` | {cell(text)} | {cell(_plain(default))} |"


def _paragraphs(text: str) -> str:
    r"""Return the help of a command as Markdown; a paragraph that begins with Click's ``\b`` is a code block."""
    shown = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text.partition("\f")[0])):
        kept = part.removeprefix("\b\n")
        shown.append(_plain(part) if kept == part else f"```text\n{kept.rstrip()}\n```")
    return "\n\n".join(shown) + "\n"


def _plain(text: str) -> str:
    """Return text on one line, in which only words between backquotes are markup."""
    return escaped(_ROOM.sub(" ", text))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
