"""Whether a part of a model is compiled: every step asks, because users may compile one at any time."""

from typing import Any

from torch import nn

from autobyte.internals import has_compiled_forward, is_compiled


class CompiledParts:
    """Finds compiled modules, and modules whose `forward` is compiled.

    To walk through a model takes as long as many of its layers' hooks. So its modules are kept, and walked through
    again only when one of them has other children than before.

    Args:
        model: may share modules among its parts.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._walk()

    def exist(self) -> bool:
        """Whether there is one now."""
        if self._all_children() != self._children:
            self._walk()
        if self._wrapped:
            return True
        for module, own in zip(self._modules, self._own, strict=True):
            marked = "forward" in own or "_compiled_call_impl" in own  # most modules have neither: no call for them
            if marked and (is_compiled(module) or has_compiled_forward(module)):
                return True
        return False

    def are_whole(self) -> bool:
        """Whether the model itself is one."""
        return is_compiled(self._model) or has_compiled_forward(self._model)

    def _walk(self) -> None:
        self._modules = list(self._model.modules())
        self._own: list[dict[str, Any]] = list(map(vars, self._modules))
        self._children = self._all_children()
        self._wrapped = any(map(is_compiled, self._modules))

    def _all_children(self) -> list[nn.Module | None]:
        return [child for own in self._own for child in own["_modules"].values()]
