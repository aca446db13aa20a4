"""An institution: one client with a table, on its own machine.

`columns` has the columns that institutions agree on before they join, and `examples` reads a table by these columns.
`terms` has a study's terms for an institution, and the reasons for refusing them. `folder` keeps the institution's
state on disk, and `holding_out` evaluates on held-out rows. `institution` runs the client.
"""
