"""What a backward pass reaches, of gradients that may travel."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autobyte.integrations.passes import reaches


def test_a_pass_reaches_what_its_graph_has_and_what_a_function_may_hide() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    inputs = torch.ones(1, 2, requires_grad=True)
    loss = one(inputs).sum() + one(2 * inputs).sum()
    assert reaches(loss, {id(one.weight)})
    assert not reaches(loss, {id(other.weight)})
    assert reaches(checkpoint(other, inputs, use_reentrant=True).sum(), {id(other.weight)})
    assert not reaches(torch.ones(()), {id(one.weight)})
