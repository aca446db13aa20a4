"""The Results page: a study's results in the words of `fedping analyze`, counted by a separate process and stored."""
