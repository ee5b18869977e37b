"""Files that are written whole or not at all: to a draft beside them, which takes their place when it is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autobyte.errors import FileError


@contextmanager
def draft_of(path: Path, *, what: str = "") -> Iterator[Path]:
    """Name a draft to write to; it replaces the file at the end of the block, and is removed if the block fails.

    Its mode is that of any new file: 0666 without the bits of the user's umask. What a link points to is replaced,
    not the link. A device or a pipe is written to directly.

    >>> with draft_of(Path("model.json")) as draft:
    ...     _ = draft.write_text("{}")

    Args:
        path: of the file.
        what: it is, for messages.

    Raises:
        FileError: the disk does not take it: it is full, say, or the folder cannot be written to.
    """
    file = Path(os.path.realpath(path))
    regular = file.is_file() or not file.exists()
    draft = file.with_name(f".{file.name}.{os.getpid()}") if regular else file
    try:
        yield draft
        if regular:
            draft.replace(file)
    except FileError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise FileError(f"cannot write {what}{' ' * bool(what)}{path}: {reason}") from None
    finally:
        if regular:
            with suppress(OSError):  # its folder is gone
                draft.unlink(missing_ok=True)
