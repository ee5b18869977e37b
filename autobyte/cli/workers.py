"""Where many pieces of work are done side by side: in processes of this machine, or on a Dask cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

JobsOption = Annotated[int, typer.Option("--jobs", help="worker processes; 0: one per core")]
DaskOption = Annotated[
    str, typer.Option("--dask", metavar="ADDRESS", help="use this Dask scheduler instead, such as tcp://host:8786")
]

Submit = Callable[..., Any]


def end_with_parent() -> None:
    """In a worker process: end as soon as its parent has, however that was killed."""
    import multiprocessing
    import os
    import threading

    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="autobyte-parent", daemon=True).start()


@contextmanager
def workers(jobs: int, dask: str) -> Iterator[tuple[Submit, Callable[[list[Any]], Any]]]:
    """What takes a function and its arguments, and what gives futures back as they are done.

    Args:
        jobs: processes here; 0 is one per core.
        dask: address of a Dask scheduler, which is used instead; empty for none.

    Raises:
        InputError: fewer processes than none.
        FileError: no scheduler answers at the address.
        MissingExtra: Dask is not installed.
    """
    from autobyte.errors import FileError, InputError, require

    if jobs < 0:
        raise InputError(f"jobs must be at least 0, got {jobs}")
    if dask:
        distributed = require("distributed", extra="dask", what="--dask")
        try:
            client = distributed.Client(dask, timeout="5s")
        except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without a certificate
            raise FileError(f"no Dask scheduler answers at {dask}: {error}") from None
        with client:
            yield lambda work, *given: client.submit(work, *given, pure=False), distributed.as_completed
    else:
        import multiprocessing
        import os
        from concurrent.futures import ProcessPoolExecutor, as_completed

        count = jobs or len(os.sched_getaffinity(0))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, mp_context=context, initializer=end_with_parent) as pool:
            try:
                yield pool.submit, as_completed
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
