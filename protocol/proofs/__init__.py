"""Validity proofs: two servers check that a client's vector contains only bits, and neither server sees the vector.

This is Prio3 of draft-irtf-cfrg-vdaf-18 ("Verifiable Distributed Aggregation Functions"), for many clients at once:
:mod:`field` has the arithmetic, :mod:`xof` the random oracle, :mod:`sum_vec` the circuit and its proof, and
:mod:`prio3` the messages.
"""
