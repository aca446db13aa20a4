"""Everything that runs on a user's device: the ranking models, the users, the fleet. Imports `protocol` alone."""
