"""Secure aggregation with two servers: the documents and formats that clients, the leader and the helper share.

A client splits its vector of whole numbers into two shares; each share alone is random. The *leader*, which is ingest
and the rounds, gets one share like any ping. The other share is sealed for the *helper*, a small service of another
operator, and reaches the helper through the leader. Both servers add up the shares that they can read, and only the two
sums together give a sum of vectors. So neither server sees a client's vector, clients post once, and no party waits for
another.

Modules: `terms`, the parties' agreement on a line's settings; `offer`, a helper's signed terms and key for a line;
`shares`, which clients compute and servers add up; `keys`, signatures and sealing; `exchange`, the request and the
answer between the servers.
"""
