"""``perfscope`` and ``python -m perfscope``. This module alone prints errors and exits."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from perfscope.commands.group import PipeClosedError, cli
from perfscope.commands.options import Flags
from perfscope.model.errors import DATA_UNREADABLE, DONE, PerfscopeError, see

INTERRUPTED = 130
"""128 + SIGINT, as in shells."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: the reader of our output went away, as ``| head`` does."""
LINE_LIMIT = 4_000
"""Characters of an error: the longest path and its reason, whole."""
OWN_FAULT = 70
"""EX_SOFTWARE of sysexits.h: an internal error of perfscope, whatever the data is."""


COLLECT_ABOVE = 200_000
"""Objects before the garbage collector looks at them: at Python's 700 it takes a tenth of the imports, for nothing."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (``sys.argv`` if not given) and exit with its code."""
    gc.set_threshold(COLLECT_ABOVE, 20, 50)
    code = run(arguments)
    gc.freeze()  # or Python searches all objects for garbage once more as it ends: 40 ms of a short command
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors become one line on stderr."""
    flags = Flags()
    if sys.stdout is None:  # closed by who started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="perfscope",
            standalone_mode=False,
            obj=flags,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, PipeClosedError):
        _silence_stdout()
        return PIPE_CLOSED
    except PerfscopeError as error:
        return _report(str(error), error.exit_code, verbose=flags.verbose)
    except MemoryError:
        line = f"not enough memory for this input{see('recording too large')}"
        return _report(line, DATA_UNREADABLE, verbose=flags.verbose)
    except OSError as error:  # a full disk, a closed output, a path beyond what the system takes
        if sys.stdout is not None and error.filename is None:
            _silence_stdout()
        line = f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
        return _report(line, DATA_UNREADABLE, verbose=flags.verbose)
    except Exception as error:
        line = f"internal error: {type(error).__name__}: {error} (-v shows where; please report it)"
        return _report(line, OWN_FAULT, verbose=flags.verbose)
    return code if isinstance(code, int) else DONE


def _report(line: str, code: int, *, verbose: bool) -> int:
    """One line on stderr, with nothing in it that could steer a terminal."""
    from perfscope.model.untrusted_text import sanitize

    if verbose:
        traceback.print_exc()
    print(f"perfscope: {sanitize(line, LINE_LIMIT)}", file=sys.stderr)
    return code


def _silence_stdout() -> None:
    """Keep the interpreter from complaining at exit that it cannot flush stdout."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
