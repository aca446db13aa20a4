"""The journal: accepted pings on disk before they are answered, in segments that any process can recover."""
