"""What training does, step by step, in one file of all ranks: `optimizer.trace()`."""
