"""What tests of Keras do on every rank, in processes of their own: TensorFlow does not survive a fork.

One launch runs many checks, because importing TensorFlow takes longer than most of them. Each rank writes what its
checks returned to a file.

    python tests/keras_ranks.py OUT CHECK...
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ranks import free_port


def run_checks(file: Path, names: Sequence[str], folder: Path, *, backend: str, timeout_s: float = 240) -> list[Any]:
    """Run checks of a file on two ranks, one after the other.

    Args:
        file: has the checks, as functions of a rank.
        names: of the checks.
        folder: for what ranks write.
        backend: of Keras.
        timeout_s: after which all are killed.

    Returns:
        what each rank's checks returned, by name; what one raised is a text that begins with `raised`.
    """
    environ = os.environ | {
        "KERAS_BACKEND": backend, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])]),
    }  # fmt: skip
    outs = [folder / f"rank{rank}.json" for rank in range(2)]
    logs = [folder / f"rank{rank}.log" for rank in range(2)]
    processes = []
    for rank in range(2):
        with logs[rank].open("w") as log:
            words = [sys.executable, __file__, str(file), str(outs[rank]), *names]
            processes.append(
                subprocess.Popen(words, env=environ | {"RANK": str(rank)}, stdout=log, stderr=log, cwd=folder)
            )
    until = time.monotonic() + timeout_s
    try:
        for process in processes:
            process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        said = "\n".join(log.read_text()[-3000:] for log in logs)
        raise AssertionError(f"ranks have not ended in time:\n{said}") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(out.read_text()) if out.exists() else {} for out in outs]


def load(file: Path | str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(check: Callable[[int], Any], rank: int) -> Any:
    """What a check returns, or what it raises as a text."""
    try:
        return check(rank)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}"


def main(file: str, out: str, *names: str) -> None:
    """Run checks, and write what they return after each, for a rank may be killed in the next."""
    if os.environ["KERAS_BACKEND"] == "torch":
        sys.modules["tensorflow"] = None  # type: ignore[assignment]  # Keras would take it, and must not need it
    checks = load(file)
    found: dict[str, Any] = {}
    for name in names:
        began_s = time.process_time()
        found[name] = outcome(getattr(checks, name), int(os.environ["RANK"]))
        found[f"{name} cpu_s"] = time.process_time() - began_s
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
