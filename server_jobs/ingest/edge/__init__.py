"""The HTTP edge: a Flask application whose one busy path is answered before Flask's own dispatch."""
