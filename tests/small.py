"""Random small jobs in which scheduling matters, for what is compared with exhaustive search."""

import numpy as np

from autobyte.job import Cluster, Job, Model


def small_job(rng: np.random.Generator, layers: int) -> Job:
    """Layers of one tensor each: sizes spread over two decades, communication 0.3 to 3 times the computation."""
    workers, compute_s = int(rng.choice([2, 4, 8, 16])), rng.uniform(0.02, 0.3)
    cluster = Cluster.uniform(workers, 10 ** rng.uniform(8, 9.7))
    sizes = np.exp(rng.normal(0, 1.3, layers))
    total = compute_s * 10 ** rng.uniform(-0.5, 0.5) / cluster.seconds_per_byte / 4
    forward_s, backward_s = (part * compute_s * rng.dirichlet(np.ones(layers)) for part in (1 / 3, 2 / 3))
    rows = [
        (f"layer {i}", [(f"weight {i}", max(1, int(sizes[i] / sizes.sum() * total)))], forward_s[i], backward_s[i])
        for i in range(layers)
    ]
    return Job(Model.build("small", rows, batch_size=8), cluster)
