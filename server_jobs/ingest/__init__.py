"""The HTTP service that accepts pings and lands them in Parquet.

    request -> admission (each rejection has a reason) -> journal (on disk before 200) -> compaction -> Parquet

| part | files |
|---|---|
| the HTTP edge of a worker | `application`, `submit`, `slow_clients`, `pages`, `heartbeat`, `services` |
| admission | `body`, `decoding`, `admission`, `prefixes`, `answers` |
| the journal | `journal`, `segments`, `backlog` |
| compaction | `compactor`, `partitions`, `duplicates`, `quarantine`, `compactor_counts` |
| counts for the operator | `counters`, `latencies`, `operations` |
| processes | `supervisor`, `worker`, and `fedping.server_jobs.processes` |

Workers answer requests and write the journal; one compactor process empties it. Processes share only files, so any
process may die at any moment.
"""
