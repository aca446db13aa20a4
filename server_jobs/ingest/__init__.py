"""The edge that takes pings over HTTP and lands them in Parquet.

    request -> admission (a reason for whatever is refused) -> journal (on disk before 200) -> compaction -> Parquet

`edge` is the Flask application, `admission` what may enter, `journal` the promise that an answered ping is kept,
`compaction` the way from the journal to Parquet, `processes` who runs what. Worker processes answer requests and write
the journal; one compactor process empties it. They share nothing but files, so that any of them may die at any moment.
"""
