"""An institution: one client with a table, on its own machine.

`columns` has what institutions agree on before they join, and `examples` reads a table by that. `terms` has what a
study asks of an institution and what is refused, `folder` the institution's state on disk, and `holding_out` the
evaluation on held-out rows. `institution` drives the client.
"""
