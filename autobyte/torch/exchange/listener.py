"""What is told of the gradients of a step."""

from collections.abc import Callable

from torch import Tensor


class Listener:
    """Is told of a step's gradients and does nothing: derive from it to do something.

    `complete` is called with a gradient's place when it is complete; where a device computes, it has been given all
    that the gradient needs. It is None where nobody is told. `leaves` is called with a name and a gradient, or zeros
    for one that is missing, that is about to travel.
    """

    complete: Callable[[int], None] | None = None
    leaves: Callable[[str, Tensor], None] | None = None

    def begins(self) -> bool:
        """A step of this rank's own inputs begins.

        Returns:
            whether ranks whose inputs have ended take part in it.
        """
        return False

    def backward(self) -> None:
        """A backward pass has completed a gradient, and nothing has been done with it yet."""

    def dropped(self) -> None:
        """The user has let go of all gradients of the open step, without a word: give it up."""

    def read(self) -> None:
        """Averages of a step that was closed to be clipped are read: clip them."""

    def announces(self) -> bool:
        """Whether this rank has something to say to all."""
        return False

    def loaded(self) -> Tensor | None:
        """A note for `Heard`, if this rank has loaded something since the step before."""
        return None
