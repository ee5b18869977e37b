"""Table II: what a predictor is told about a running job, from the model and from what windows showed.

Reference: AutoByte, sec. III-A and Table II.
"""
