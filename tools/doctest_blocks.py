"""Shows the `>>>` examples of docstrings as code on the documentation site: an extension of griffe (mkdocs.yml)."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Puts a fence around every example that stands in the text of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """An object was read, and has no members yet or all of them: only its own docstring counts."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    """Python without prompts; what an example prints becomes a comment."""
    lines = []
    for line in example[0].splitlines():
        code = line.startswith((">>> ", "... ")) or line == "..."
        lines.append(line[4:] if code else f"# {line}")
    return "```python\n" + "\n".join(lines) + "\n```"
