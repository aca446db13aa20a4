"""The form of a laboratory experiment, made of the types of its settings.

`nodes` is what a form is made of, `fields` makes them of types, and `schema` the whole form; `words` has what types
cannot say (labels, order), `helps` takes the help from docstrings. `values` fills a form with an experiment and reads
one out of it again, `posted` takes it from what a browser sends. A new optimizer, model, partition or data set appears
by itself.
"""
