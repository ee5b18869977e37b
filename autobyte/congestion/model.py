"""Actor and critic in PyTorch: a layer for the objective, one for the features, and one that joins them."""

import numpy as np
import torch
from torch import Tensor, nn

from autobyte.congestion.policy import HEADS, JOINT, SEEN, WISH, RatePolicy
from autobyte.congestion.senses import INPUTS

STD_LIMITS = (-3.0, 0.4)  # of its logarithm: left alone, the entropy bonus drives it to infinity


class PreferenceHead(nn.Module):
    """The preference sub-network and the rest of a head (MOCC, fig. 4).

    Args:
        preference: the objective has a layer of its own; else it is one input among others, as in the release.
    """

    def __init__(self, *, preference: bool = True) -> None:
        super().__init__()
        if preference:
            self.wish, self.seen = nn.Linear(3, WISH), nn.Linear(INPUTS - 3, SEEN)
        else:
            self.both = nn.Linear(INPUTS, WISH + SEEN)
        self.joint, self.out = nn.Linear(WISH + SEEN, JOINT), nn.Linear(JOINT, 1)
        self._preference = preference
        nn.init.orthogonal_(self.out.weight, gain=0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs of shape [n, 33] to [n]."""
        if self._preference:
            hidden = torch.cat([self.wish(inputs[:, :3]), self.seen(inputs[:, 3:])], dim=1).tanh()
        else:
            hidden = self.both(inputs).tanh()
        out: Tensor = self.out(self.joint(hidden).tanh())
        return out[:, 0]


class ActorCritic(nn.Module):
    """Mean action, its spread, and the value of a state.

    Args:
        preference: see `PreferenceHead`.
        seed: of the first weights.
    """

    def __init__(self, *, preference: bool = True, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critic = (PreferenceHead(preference=preference) for _ in HEADS)
            self.log_std = nn.Parameter(torch.zeros(1))

    def policy(self) -> RatePolicy:
        """The same, in NumPy."""
        return RatePolicy({name: values.detach().numpy().copy() for name, values in self.state_dict().items()})

    @classmethod
    def of(cls, policy: RatePolicy) -> "ActorCritic":
        """What a policy was made of, to train it on."""
        model = cls(preference="actor.both.weight" not in policy.arrays)
        model.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in policy.arrays.items()})
        return model

    def clamp(self) -> None:
        """Keep the spread within limits."""
        with torch.no_grad():
            self.log_std.clamp_(*STD_LIMITS)
