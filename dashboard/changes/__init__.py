"""Who changed what: the list of the changes that people made by the dashboard, and its page."""
