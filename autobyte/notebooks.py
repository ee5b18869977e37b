"""What notebooks show of an object: a small HTML table."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[str]], *, columns: Sequence[str] = ()) -> str:
    """Make a table with a title; the first cell of a row names it.

    >>> html_table("job", [("workers", "8")])
    '<table><caption>job</caption><tbody><tr><th scope="row">workers</th><td>8</td></tr></tbody></table>'
    """
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    shown = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f"<table><caption>{escape(title)}</caption>{shown}<tbody>{body}</tbody></table>"
