"""Health of studies: facts, checks of the facts, and reports of changes."""
