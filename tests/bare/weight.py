"""Write what is installed beside torch and what torch requires, as JSON: megabytes by name."""

import json
import re
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

IGNORED = {"pip"}


def main() -> None:
    """Print megabytes of torch with what it requires, and of every other distribution."""
    with_torch = required("torch", set())
    beside = {name(each): mb(each) for each in distributions() if name(each) not in with_torch | IGNORED}
    total = sum(mb(distribution(each)) for each in with_torch)
    print(json.dumps({"torch_mb": total, "beside_torch_mb": dict(sorted(beside.items()))}))


def required(of: str, found: set[str]) -> set[str]:
    """Names of a distribution and all that it requires, as far as it is installed."""
    installed = {name(each): each for each in distributions()}
    if of in installed and of not in found:
        found.add(of)
        for line in installed[of].requires or ():
            if "extra ==" not in line:
                required(canonical(re.match(r"[\w.-]+", line).group()), found)  # type: ignore[union-attr]
    return found


def name(of: Distribution) -> str:
    """Its name, as requirements write it."""
    return canonical(of.metadata["Name"])


def canonical(text: str) -> str:
    """A name in its one spelling (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def mb(of: Distribution) -> float:
    """What its files take."""
    paths = (Path(str(file.locate())) for file in of.files or ())
    return sum(path.stat().st_size for path in paths if path.exists()) / 1e6


if __name__ == "__main__":
    main()
