"""What chooses the config while training runs, keeps what it found, and reports it."""
