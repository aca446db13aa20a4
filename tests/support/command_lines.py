"""Checks whether fedping accepts a command line, without running it."""

from collections.abc import Iterable, Sequence

import click

from fedping.main import cli


def refused(words: Sequence[str]) -> str:
    """Return the reason why fedping rejects some words, including their values; an empty text if it accepts them."""
    command: click.Command = cli
    left = list(words)
    try:
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), left[0]) if left else None
            if found is None:
                return f"no such command: fedping {' '.join(words)}"
            command, left = found, left[1:]
        command.make_context(command.name, left)
    except click.exceptions.Exit:  # --help
        return ""
    except click.ClickException as error:
        return f"fedping {' '.join(words)}: {error.format_message()}"
    return ""


def value_of(words: Iterable[str], option: str) -> str | None:
    """Return an option's value, given as ``--option=value`` or in the next word; None without the option."""
    listed = list(words)
    for at, word in enumerate(listed):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            return listed[at + 1]
    return None
