"""The papers' experiments: TOML files, the losses that these files name, and scripts for pictures and tables."""
