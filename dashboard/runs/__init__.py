"""Experiments from the browser: described in a form or as text, started, listed, stopped, gone on with.

`run` is one run as its folder tells of it, `book` all of them and what can be done to them, `next` what one that ends
leaves to be done, `listing` the list as a page follows it, `places` the runs of the book and those that the command
line has put into the same folder. `form` makes fields of the laboratory's settings, `presets` are what to begin with,
`judging` says whether a description is right, and where not, by the code of the command; `toml` writes it. `views` and
`describing` are the pages.
"""
