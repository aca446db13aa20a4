"""Health of studies: the facts, the checks of them, and the reports of changes."""
