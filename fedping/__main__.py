"""`python -m fedping` is the `fedping` command."""

from fedping.main import run

run()
