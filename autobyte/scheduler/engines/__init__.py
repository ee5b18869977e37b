"""How a block moves. `base` is the interface."""
