"""The form of a laboratory experiment, generated from the types of its settings.

`nodes` defines the parts of a form, `fields` makes them from types, and `schema` makes the whole form; `words` has
information that types lack (labels, order), and `helps` takes the help from docstrings. `values` fills a form with an
experiment and reads one from a form, `posted` reads forms sent by browsers. A new optimizer, model, partition or data
set appears automatically.
"""
