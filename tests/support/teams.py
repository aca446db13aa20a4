"""A dashboard's team as tests see it: one person of each role, with a token."""

from pathlib import Path

from click.testing import CliRunner

from fedping.commands.dashboard import dashboard


def add(file: Path, name: str, role: str, *options: str) -> str:
    """Add a person by the command, and return the token that it prints."""
    done = CliRunner().invoke(dashboard, ["team", "add", name, "--role", role, "--team", str(file), *options])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def of_three(file: Path) -> dict[str, str]:
    """Make a team of one person of each role, and return their tokens by role."""
    people = {"reader": "rita", "analyst": "ann", "operator": "otto"}
    return {role: add(file, name, role) for role, name in people.items()}


def bearer(token: str) -> dict[str, str]:
    """Return the headers of a program with a token."""
    return {"Authorization": f"Bearer {token}"}
