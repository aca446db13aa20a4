"""Secure aggregation with two servers: what clients, the leader and the helper have to agree on.

A client splits its vector of whole numbers into two shares, each of which alone is noise: the *leader*, which is ingest
and the rounds, gets one as it gets any ping; the other is sealed for the *helper*, a small service of another operator,
and reaches it through the leader. Both add up the shares that they can read, and only the two sums together are a sum
of vectors. So neither sees anybody's vector, clients post once, and nobody waits for anybody.

In the order in which they come up: the `offer` in which a helper says on what terms and with what key it takes part in
a line, the `shares` that a client makes and `sealing` one of them, the `exchange` of a request for an answer, and the
`ring` in which everything is added up. What is signed, is signed as `signing` says.
"""
