"""Known attacks on an institution's rows by the party that chooses the weights, applied to our updates.

`victim` is an institution that answers weights as `fedping join` does. Each attack has its own module and yields
guesses of rows: `half_spaces` (also by refused pings), `bins`, `clusters`, `differencing` and `evaluation`. `audit`
counts the recovered rows of a table, with and without protection, and `canary` proves a lower bound of ε.

Sources: Boenisch et al., "When the Curious Abandon Honesty", 2021, for weights as traps; Fowl et al., "Robbing the
Fed", 2021, for bins in a first layer; Wen et al., "Fishing for User Data in Large-Batch Federated Learning", 2022.
"""
