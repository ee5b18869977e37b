"""`python -m autobyte` is the `autobyte` command."""

from autobyte.cli import main

main()
