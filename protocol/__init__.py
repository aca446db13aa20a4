"""Messages and settings shared by clients and servers. Imported by both sides; imports neither."""

__version__ = "0.1.0"
"""The version of the distribution; every room can name it, and a model version's lineage does."""
