"""The composition root: study files, and the programs that wire client and server packages together."""
