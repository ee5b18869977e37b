"""What moves gradients: ranks that meet, steps that begin and end, blocks that travel, and their failures."""
