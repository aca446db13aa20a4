"""What a federated run is held against: pooled data, each client alone, and the start model."""
