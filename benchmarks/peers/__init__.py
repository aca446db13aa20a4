"""Comparisons with other frameworks on the same federated work, each installed in an environment of its own.

`work` defines the task and needs only NumPy, so that every environment can import it; each `*_worker` is the code that
a user of a framework writes for the task; `compare` installs and runs the frameworks and prints the table.
"""
