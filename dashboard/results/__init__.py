"""The Results page: what a study showed, as `fedping analyze` says it, counted by a process of its own and kept."""
