"""Schedulers on shaped links: the same model, the same hosts, one after the other.

bench.py, cell.py     emulated models: what is run, and one rank of it
real.py, rank.py      real models, on one GPU: what records come to, and one rank of it
methods.py            ways to train a real model: DDP with all it offers, AutoByte with each way to choose a config
networks.py           real models, inputs and losses
records.py            what stands in every record of them
"""
