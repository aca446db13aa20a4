"""Secure aggregation with two servers: the documents and formats that clients, the leader and the helper share.

A client splits its vector of whole numbers into two shares; each share alone is noise. The *leader*, which is ingest
and the rounds, gets one share like any ping. The other is sealed for the *helper*, a small service of another operator,
and reaches it through the leader. Both add up the shares that they can read, and only the two sums together are a sum
of vectors. So neither sees a client's vector, clients post once, and no party waits for another.

In order of use: the `offer` in which a helper states its terms and its key for a line, the `shares` that a client makes
and `sealing` one of them, the `exchange` of a request for an answer, and the `ring` in which everything is added up.
Signatures follow `signing`.
"""
