"""What travels between clients and server. Imported by both sides; imports neither."""
