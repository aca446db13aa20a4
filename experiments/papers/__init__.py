"""The papers' experiments: a file each, and the pictures of `docs/experiments.md`."""
