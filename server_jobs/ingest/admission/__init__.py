"""What may enter: bodies within their limits, pings of the declared form, of a study and arm that exist."""
