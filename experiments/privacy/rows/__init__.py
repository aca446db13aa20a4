"""Attacks on an institution's rows by whoever chooses the weights: what is known in the field, against what we send.

`victim` is an institution that answers weights as `fedping join` does. Each attack is a file, and yields guesses of
rows: `half_spaces` (also by refused pings), `bins`, `clusters`, `differencing` and `evaluation`. `audit` counts how
many rows of a table they are, with and without protection, and `canary` proves a least ε.

Sources: Boenisch et al., "When the Curious Abandon Honesty", 2021, for weights as traps; Fowl et al., "Robbing the
Fed", 2021, for bins in a first layer; Wen et al., "Fishing for User Data in Large-Batch Federated Learning", 2022.
"""
