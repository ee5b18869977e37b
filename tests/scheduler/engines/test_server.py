"""What a parameter server keeps."""

import torch

from autobyte.scheduler.engines.server import STALE, ParameterServer


def test_a_server_forgets_the_sizes_of_configs_that_are_no_longer_in_force() -> None:
    server = ParameterServer(None, rank=0, workers=[0], servers=[0], connect=dict)
    for _ in range(3):
        server._pool[4000].append(server._memory(torch.float32, 4000))
    for _ in range(2 * STALE):
        server._pool[800].append(server._memory(torch.float32, 800))
    assert {size: len(free) for size, free in server._pool.items()} == {800: 1}
    server.close()
