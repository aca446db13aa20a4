"""The form of an experiment, generated from the types of its settings.

`nodes` makes the parts of a form from types, with help from docstrings, `schema` makes the whole forms, and `words` has
information that types lack (labels, order). `values` fills a form with an experiment, and reads an experiment from a
form that a browser sends. A new optimizer, model, partition or data set appears automatically.
"""
