"""Taking part with a table of one's own: an institution is one client, on a machine of its own.

`columns` is what institutions agree on beforehand, `examples` reads a table by that, and `scaling` finds scales that
are no table's own. `folder` is what an institution keeps on its disk, `checking` believes no model without a look,
`evaluating` tells how versions do on rows that are held out, `secrecy` takes part in private lines, and `institution`
joins these with a fleet's client.
"""
