"""Run commands without any extra, and write how each ended, as JSON, to the last argument's file.

python commands.py COMMANDS.json ENDED.json
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from autobyte.cli import run


def main(commands: str, ended: str) -> None:
    """Run one command after the other; a traceback is what ends this."""
    told = []
    for words in json.loads(Path(commands).read_text()):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run(words)
        told.append({"status": status, "out": out.getvalue(), "err": err.getvalue()})
    Path(ended).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
