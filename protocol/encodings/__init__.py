"""Encodings of updates: both sides' functions to write and read the payloads of many pings at a time."""
