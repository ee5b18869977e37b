"""Pages are Jinja2 templates beside the modules that fill them in; every value is escaped."""

from collections.abc import Mapping

from autobyte.errors import needs

with needs("plot", what="a page"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

_PAGES = Environment(
    loader=PackageLoader("autobyte", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def fill(name: str, values: Mapping[str, object]) -> str:
    """Make a page from its template.

    Args:
        name: the template's path in the package, such as `comparison/page.html`.
        values: by the names that the template uses. Text is escaped, so that a name is only a name; a `Markup`, such
            as a picture, is HTML already.

    Raises:
        jinja2.UndefinedError: the template uses a name that has no value.
    """
    return _PAGES.get_template(name).render(values)
