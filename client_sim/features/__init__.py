"""Ranking by the features of a product's own (`fedping.protocol.features`): values, scores, losses and updates.

`reference.py` computes one list at a time in plain loops, as clients in every language do. `vectors.py` computes the
same bits for many lists at once.
"""
