"""AutoByte: a network that was trained before the job began predicts every candidate, and goes on learning.

`tuner` has the improved variant: the twin (`autobyte.tuners.twin`) with the network as its predictor (`predictor`).
`published` has the paper's, with the network on a running job as published (`network`).

Reference: AutoByte, sec. III.
"""

from autobyte.tuners.metanet.published import MetanetPublished
from autobyte.tuners.metanet.tuner import Metanet

__all__ = ["Metanet", "MetanetPublished"]
