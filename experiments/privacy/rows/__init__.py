"""Attacks on an institution's rows by whoever chooses the weights: what is known in the field, against what we send.

`victim` is an institution that answers weights as `fedping join` does. Each attack is a file: `half_spaces`, `bins`,
`clusters`, `differencing`, `evaluation` and `refused_pings`; it yields guesses of rows. `audit` counts how many rows of
a table they are, with and without protection.

Sources: Boenisch et al., "When the Curious Abandon Honesty", 2021, for weights as traps; Fowl et al., "Robbing the
Fed", 2021, for bins in a first layer; Wen et al., "Fishing for User Data in Large-Batch Federated Learning", 2022.
"""
