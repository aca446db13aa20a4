"""What a study showed: figures and tables drawn from landed pings and published versions."""
