"""Experiments from the browser: described in a form, started, listed, stopped, gone on with.

`run` is one run as its folder tells of it, `book` all of them and what can be done to them. `form` makes fields of the
laboratory's settings, `describing` turns what was filled in into the file that `fedping simulate` takes, and judges it.
"""
