"""The pages of a run, with its curves and results, and of comparisons, with variants side by side.

All data are read from the folder that `fedping simulate` writes. So runs may be started by anyone, with or without a
running dashboard.
"""
