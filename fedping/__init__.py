"""The `fedping` command: one file a subcommand, each of which parses, calls a room, and prints."""

__version__ = "0.1.0"
