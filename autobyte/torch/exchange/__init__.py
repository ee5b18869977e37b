"""What PyTorch's gradients need on their way: hooks, steps, copies from a GPU, DDP's buckets, clipping, `Join`."""
