"""MOCC: one congestion control for many objectives (arXiv:2107.01427); nothing of it is imported by training.

An application says what it wishes by weights of throughput, latency and loss. One network, trained on a simulated
link, sets the sending rate for any such weights.
"""
