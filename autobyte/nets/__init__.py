"""The meta-network: what a step will take under every config, predicted from what a window showed.

`dataset` makes what it learns from, `metanet` is the network, `training` fits it before any job runs, `adaptation`
while one runs; `weights/` is what came out.

Reference: AutoByte, sec. III.
"""
