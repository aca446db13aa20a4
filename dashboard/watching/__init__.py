"""Experiments as they go, and side by side: one run with its curves and its results, and variants compared.

Everything is read from the folder that `fedping simulate` writes, so it does not matter who started the run, nor
whether a server was there meanwhile.
"""
