"""The Live page: how a line of a study fares, iteration by iteration, and rolling it back."""
