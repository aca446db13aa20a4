"""Validity proofs: two servers check that a client's vector has only bits in it, and neither sees the vector.

Prio3 of draft-irtf-cfrg-vdaf-18, "Verifiable Distributed Aggregation Functions", with the circuit of sums of vectors over
a field of 64 bits and several proofs, for many clients at once. A file is an idea: :mod:`field` the arithmetic,
:mod:`xof` what random elements are drawn from, :mod:`sum_vec` the circuit with its proof, :mod:`prio3` the messages.
"""
