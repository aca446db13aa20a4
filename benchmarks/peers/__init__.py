"""The same federated work in other frameworks, each installed in its own environment, next to ours.

`work` defines the task, with NumPy alone, so that every environment can import it; each `*_worker` is the code that a
user of that framework writes for it; `compare` installs, runs and prints the table.
"""
