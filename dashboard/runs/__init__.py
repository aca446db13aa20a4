"""Experiments in the browser: describe them in a form or as text; start, list, stop and continue runs.

`run` reads a run from its folder, `book` has all runs and the operations on them, `next` is the program that a run
starts at its end, `listing` is the list that a page follows, and `places` finds the runs of the book and those that
the command line has put into the same folder. `form` makes fields from the laboratory's settings, `presets` are
descriptions to begin with, `judging` checks a description with the command's code and locates its errors; `toml`
writes it. `views` and `describing` are the pages.
"""
