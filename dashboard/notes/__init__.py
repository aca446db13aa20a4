"""Notes about a study, shown on its Live and Results pages and drawn on their charts."""
