"""A plan is of one process: programs that start as one of several are told so."""

from __future__ import annotations

import functools
from typing import Any

ONE = (
    "a plan is of one process, and torch.distributed is not covered: start the program so that it trains alone "
    "(without its process group and its DistributedDataParallel)"
)


def only_one_process() -> None:
    """Have ``torch.distributed`` say why it cannot be set up, in this process; nothing where it is not built in."""
    import torch.distributed as distributed

    if not distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    def refused(original: Any) -> Any:
        @functools.wraps(original)
        def begin(*arguments: Any, **named: Any) -> Any:
            try:
                return original(*arguments, **named)
            except Exception as error:
                raise RuntimeError(ONE) from error

        return begin

    distributed.init_process_group = refused(distributed.init_process_group)
    group: Any = DistributedDataParallel
    group.__init__ = refused(group.__init__)
