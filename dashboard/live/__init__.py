"""The Live page: the progress of a study's line, iteration by iteration, and its rollback."""
