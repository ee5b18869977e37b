"""One name, one thing: no two classes of the package share a name."""

import ast
from collections import defaultdict
from pathlib import Path

import autobyte

PACKAGE = Path(autobyte.__file__).parent


def test_no_two_classes_share_a_name() -> None:
    files = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(files) > 100
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
