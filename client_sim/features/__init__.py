"""Ranking by a product's own features (`fedping.protocol.features`): values, scores, losses and updates.

`reference.py` computes one list at a time in plain loops, like clients in every language. `vectors.py` computes many
lists at once, with the same result to the bit.
"""
