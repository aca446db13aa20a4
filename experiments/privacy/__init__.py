"""Differential privacy for researchers: trials before a release, and attacks on the planned release."""
