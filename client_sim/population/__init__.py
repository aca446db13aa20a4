"""The users of the browser: synthetic users (thesis 7.3) or a person's own history, as pages and searches."""
