"""What is told of the gradients of a step."""

from torch import Tensor


class Listener:
    """Is told of a step's gradients and does nothing: derive from it to do something."""

    def begins(self) -> bool:
        """A step of this rank's own inputs begins.

        Returns:
            whether ranks whose inputs have ended take part in it.
        """
        return False

    def backward(self) -> None:
        """A backward pass has completed a gradient, and nothing has been done with it yet."""

    def gradient(self, name: str) -> None:
        """A gradient is complete; where a device computes, it has been given all that the gradient needs."""

    def leaves(self, name: str, gradient: Tensor) -> None:
        """A gradient, or zeros for one that is missing, is about to travel."""

    def announces(self) -> bool:
        """Whether this rank has something to say to all."""
        return False

    def loaded(self) -> Tensor | None:
        """A note for `Heard`, if this rank has loaded something since the step before."""
        return None
