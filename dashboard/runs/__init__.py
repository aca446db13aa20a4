"""Experiments in the browser: describe them in a form or as text; start, list, stop and continue runs.

`registry` has the runs that the dashboard starts, and the operations on them; `next` is the program that a run starts
at its end; `places` finds these runs and those that the command line has put into the same folder. `index` caches the
runs' settings and metrics (`entries`, `flat`), `choosing` selects among them, and `listing` is the list that a page
follows. `form` makes forms from the settings of experiments. `judging` checks a description with the command's code and
locates its errors, and has the shipped experiments. `views` are the pages.
"""
