"""The list of changes that people made with the dashboard, and the page that shows it."""
