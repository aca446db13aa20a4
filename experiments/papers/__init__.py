"""The papers' experiments: one TOML file each, losses that these files name, and scripts for pictures and tables."""
