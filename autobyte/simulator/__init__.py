"""Training in virtual time: the scheduler's own core on a modelled network, and the same compiled."""
