"""A dashboard's team for tests: one member of each role, with a token."""

from pathlib import Path

from click.testing import CliRunner

from fedping.commands.dashboard import dashboard


def add(file: Path, name: str, role: str, *options: str) -> str:
    """Add a member by the command, and return the printed token."""
    done = CliRunner().invoke(dashboard, ["team", "add", name, "--role", role, "--team", str(file), *options])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def of_three(file: Path) -> dict[str, str]:
    """Make a team with one member of each role, and return their tokens by role."""
    people = {"reader": "rita", "analyst": "ann", "operator": "otto"}
    return {role: add(file, name, role) for role, name in people.items()}


def bearer(token: str) -> dict[str, str]:
    """Return the request headers of a program with a token."""
    return {"Authorization": f"Bearer {token}"}
