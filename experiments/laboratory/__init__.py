"""The laboratory: experiments with any model and any federated algorithm on any data, described in one file.

It uses both sides: clients learn with the code of `client_sim`, the server steps with the code of `server_jobs`, and
one setting decides whether the updates go through memory, through landed files, or over HTTP and Spark. A whole study
with simulated users, who see results and change their habits, is run by `fedping.experiments.simulate`.

    settings/                  the file                   preparing.py, models.py, users.py     a problem, for one seed
    cohort.py, attacking.py    the clients' updates       rounds/                               the server's rounds
    clock/                     simulated time             baselines.py                          pooled, alone, untrained
    tallies.py, evaluation.py  metrics                    notes.py                              for readers
    training.py, resuming.py   one run                    units.py, one_run.py, pool.py, run.py all runs, side by side
    results.py, summary.py     the output                 report.py, exporting.py               for people, other tools
    comparing.py               two variants
"""
