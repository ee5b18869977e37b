"""What the papers claim beside what we get, figure by figure: the README of this folder, from the CSVs in data/.

    python paper/claims.py        # 3 seconds

Nothing of ours is typed here: every number is read from data/, or worked out from what is there. What the paper says
is from its text, which gives ranges for figures 8 to 10, and no speeds. The claims themselves are in `claims_*.py`.
"""

from collections.abc import Iterable, Iterator, Sequence

import claims_changing
import claims_environments
import claims_mocc
import claims_pairs
import claims_search
import claims_tables
import claims_usbyte
import sheet
from claim import Claim, Notes, Numbers, Section, Table

INTRODUCTION = """\
# The paper's figures and tables, from the numbers of this repository

`paper/claims.py` writes this page from `data/*.csv`. `make paper` computes the simulated numbers again, and
`make paper-testbed` measures the emulated ones.

- *Simulated*: 8 workers in the simulator. Layer times are those of `docs/models.md`. What a block costs besides its
  bytes is US-Byte's start-up or NCCL's (figure 3 says where they come from). With NCCL's start-up, figures 8 to 10
  and table I have one seed. None of it was fitted to a figure.
- *Emulated*: real sockets and real scheduling between hosts in network namespaces, on links with enforced rates.
  Compute is replaced by sleeping. Sizes and rates are scaled down together. Launches without a date are of 22
  and 23 November 2026.
- *Ratio*: our speed divided by the paper's, where both are multiples of the same baseline (a gain of 10 % counts as
  1.1).
- A *pair* ⟨4,2⟩ is a partition of 4 MB (MiB in our simulations) and a credit of two partitions.
- *ByteScheduler, released*: what its released code does. Its tuner writes the partition to a field that nothing
  reads, so it tunes the credit alone, with partitions of 4 MB.
- *BO, repaired* (the tuner `bayesian`): Bayesian optimisation of both numbers, on the log scale.
- *Our meta-network* (the tuner `metanet`) is called AutoByte in the pictures, and *the meta-network as published*
  (`metanet-published`) AutoByte as published. Ours is mostly a closed form and the twin's memory and choice: in
  simulation it is as good without its network (`docs/metanet.md`).
- *The optimum* of figures 5 to 7 is at least as fast as every run there; the figures say what it is. *The best of the
  grid* in figures 8 and 9 is the fastest of 304 pairs, so a tuner can be faster.
- *DDP at its best bucket*: the fastest of 1, 4, 25 and 100 MiB.
- *The best constant*: the one pair that is fastest on average over 7 models at 1, 3, 10 and 25 Gbit/s. A method has
  to gain over it to show that tuning helps.
- *The baseline*: nothing overlaps. All gradients are sent after the backward pass and before the next forward pass.
"""
SECTIONS: tuple[Section, ...] = (
    *claims_pairs.SECTIONS,
    *claims_changing.SECTIONS,
    *claims_environments.SECTIONS,
    *claims_search.SECTIONS,
    *claims_tables.SECTIONS,
    *claims_usbyte.SECTIONS,
    *claims_mocc.SECTIONS,
)


def render(sections: Iterable[Section], numbers: Numbers) -> str:
    """Make the page: every section with its figures, tables and notes, in Markdown."""
    lines = INTRODUCTION.splitlines()
    for section in sections:
        lines += _figures(section, numbers)
        for part in section.parts:
            lines += _table(part, numbers) if isinstance(part, Table) else _notes(part, numbers)
    return "\n".join(lines) + "\n"


def _figures(section: Section, numbers: Numbers) -> Iterator[str]:
    """The heading, the simulated figure, and the emulated ones where they were measured."""
    yield from ("", f"## {section.source}", "", f"![{section.source}](figures/{section.figure}.png)", "")
    for kind, links in (("testbed", "shaped links"), ("crossing.testbed", "links of 1 and 0.5 Gbit/s")):
        if not numbers[f"{section.figure}.{kind}"].empty:
            yield from (f"![{section.source}, on {links}](figures/{section.figure}.{kind}.png)", "")


def _table(table: Table, numbers: Numbers) -> list[str]:
    """A table's lines; none where no claim has numbers."""
    columns = list(table.columns(numbers))
    lines = [_row(cells) for claim in table.claims if (cells := _cells(claim, numbers)) is not None]
    return [*table.above, _row(columns), "|" + "---|" * len(columns), *lines] if lines else []


def _cells(claim: Claim, numbers: Numbers) -> Sequence[str] | None:
    judged = claim.judge(numbers[claim.file], numbers)
    if judged is None:
        return None
    return [claim.text, *([] if claim.paper is None else [claim.paper]), *judged]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _notes(notes: Notes, numbers: Numbers) -> Iterator[str]:
    yield ""
    yield from (f"- {sentence}" for sentence in notes.write(numbers) if sentence)


def main() -> None:
    """Write README.md beside data/."""
    parser = sheet.options(__doc__)
    parser.set_defaults(redraw=True)
    options = parser.parse_args()
    page = render(SECTIONS, Numbers(options.out))
    (options.out / "README.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
