"""The same federated work in other frameworks, each installed in an environment of its own, beside ours.

`work` says what is to be done, with NumPy alone, so that every environment can import it; each `*_worker` is what a
user of that framework writes for it; `compare` installs, runs and prints the table.
"""
