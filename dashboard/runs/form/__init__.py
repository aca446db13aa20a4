"""The form of a laboratory experiment, made of the types of its settings.

`nodes` is what a form is made of, `schema` makes it of the settings, `words` has what types cannot say (labels, order),
`helps` takes the help from docstrings, `values` fills a form with an experiment and reads one out of it again. A new
optimizer, model, partition or data set appears by itself.
"""
