"""Entry of the command line: subcommands by name, imported only when used, and errors reported in one sentence."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from fedping import __version__
from fedping.extras import OF_COMMANDS, missing_package
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, TemporaryFailure, did_you_mean

SUBCOMMANDS = {
    "demo": ("fedping.commands.demo", "demo", "Run everything here: ingest, a fleet of clients, Spark rounds."),
    "study": (
        "fedping.commands.study",
        "study",
        "Start a study from a template, create its version 0; show, check, change or watch one.",
    ),
    "ingest": ("fedping.commands.ingest", "ingest", "Accept pings over HTTP and land them in Parquet."),
    "fleet": ("fedping.commands.fleet", "fleet", "Simulate clients against an ingest address."),
    "join": ("fedping.commands.join", "join", "Take part in a study with your own table."),
    "simulate": (
        "fedping.commands.simulate",
        "simulate",
        ("Run a whole study, or a laboratory experiment, on this machine."),
    ),
    "sweep": ("fedping.commands.laboratory", "sweep", "Run a laboratory experiment over a grid of settings."),
    "compare": ("fedping.commands.laboratory", "compare", "Compare two laboratory runs, seed by seed."),
    "export": ("fedping.commands.laboratory", "export", "Export a laboratory experiment: metrics, tables, artifacts."),
    "reproduce": ("fedping.commands.laboratory", "reproduce", "Run an exported experiment again, and compare."),
    "describe": ("fedping.commands.describe", "describe", "Draw what clients' data look like, from sums alone."),
    "round": ("fedping.commands.round", "round_", "Compute the next version from landed pings."),
    "schedule": ("fedping.commands.schedule", "schedule", "Run a round every 30 minutes in one warm Spark session."),
    "analyze": ("fedping.commands.analyze", "analyze", "Show the outcome of a study: verdict, tests, effects, report."),
    "dashboard": ("fedping.commands.dashboard", "dashboard", "Serve the dashboard: watch studies, run experiments."),
    "power": ("fedping.commands.power", "power", "Plan a study: users needed to show an effect or train a model."),
    "plan": ("fedping.commands.plan", "plan", "Estimate upload sizes and fleet costs."),
    "store": (
        "fedping.commands.store",
        "store",
        "Versions: history, differences, rollback, recomputation; continue after a restored backup.",
    ),
    "landing": ("fedping.commands.landing", "landing", "Landed pings: remove, copy, import, inspect."),
    "privacy": ("fedping.commands.privacy", "privacy", "Plan and track privacy budgets."),
    "helper": ("fedping.commands.helper", "helper", "Run the helper (second server) of two-server lines."),
    "audit": ("fedping.commands.audit", "audit", "Test the privacy of a study's lines by attacks."),
    "deploy": ("fedping.commands.deploy", "deploy", "Write systemd units, nginx settings, alerts and manifests."),
    "docs": ("fedping.commands.docs", "docs", "Print a page of the docs, or list them."),
    "schema": ("fedping.commands.schema", "schema", "Print the JSON and Arrow schemas of messages and files."),
}
"""Module, attribute and summary of every subcommand; because of the summaries, --help imports no subcommand."""

ENDED_IN_ORDER = ("ingest", "join", "round", "schedule")
"""Commands that report SIGTERM; during their imports, Python would end without a message."""


class LazyGroup(click.Group):
    """A command group that imports a subcommand only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the subcommands in the order in which a new user needs them."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, attribute, _ = SUBCOMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that arguments name.

        Raises:
            click.UsageError: no subcommand has the name.
        """
        name = str(args[0])
        if name not in SUBCOMMANDS and not name.startswith("-"):
            raise click.UsageError(f"No such command '{name[:80]}'{_instead(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from their summaries, without imports."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in SUBCOMMANDS.items()])


def _instead(name: str) -> str:
    if name == "help":
        return "; 'fedping --help' lists the commands, 'fedping COMMAND --help' describes one."
    return did_you_mean(name, SUBCOMMANDS) or "; 'fedping --help' lists the commands."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedping")
def cli() -> None:
    """Federated learning over the telemetry that a product already has.

    Clients fetch a model and post pings; pings land in Parquet; a Spark round turns them into the next model version.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0: done, or nothing to do. 1: a :class:`FedpingError`, reported in one sentence. 2: the command line or a settings
    file is invalid. 3: a round resulted in weights that clients can't read. 130: interrupted from the keyboard. A
    defect is raised, with its traceback.
    """
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="fedping", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        if log.is_json():
            log.tell(error.format_message())
        else:
            error.show()
        return error.exit_code
    except FedpingError as error:
        log.tell(str(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        log.tell("interrupted")
        return 130
    except OSError as error:
        storage_error = _storage_error(error)
        if storage_error is None:
            raise
        log.tell(str(storage_error))
        return storage_error.exit_code
    except ModuleNotFoundError as error:
        words = sys.argv[1:] if argv is None else argv
        command = next((word for word in words if word in SUBCOMMANDS), "")
        missing = missing_package(error, f"fedping {command}", OF_COMMANDS.get(command))
        if missing is None:
            raise
        log.tell(str(missing))
        return missing.exit_code
    return code if isinstance(code, int) else 0


_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
_AWAY = (errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a network disk that does not respond."""


def _storage_error(error: OSError) -> FedpingError | None:
    """Return the message about a disk or file problem that a person can repair; None for other errors."""
    where = f" for {error.filename}" if error.filename else ""
    if error.errno in _FULL:
        return FedpingError(f"the disk is full{where}; free some space, then run the same command again")
    if error.filename and error.errno in _NOT_ALLOWED:
        return FedpingError(
            f"{error.filename}: {error.strerror}. Let the user that runs fedping read and write there, then run the "
            "same command again."
        )
    if error.filename and error.errno in _AWAY:
        return TemporaryFailure(
            f"{error.filename}: {error.strerror}. Check that the disk is mounted and works, then run the same "
            "command again."
        )
    return None


def run() -> None:
    """Run the command line of this process and leave with its exit code."""
    if sys.argv[1:2] and sys.argv[1] in ENDED_IN_ORDER and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _say_when_terminated()
    sys.exit(main())


def _say_when_terminated() -> None:
    """Report SIGTERM before it ends this process, until the command installs its own handlers."""
    here = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() == here:
            log.tell_past_streams("terminated", "info")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
