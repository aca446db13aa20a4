"""Error texts for Python users: a command's options are a function's parameters there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedping.protocol.errors import FedpingError


@contextmanager
def python_names(**names: str) -> Iterator[None]:
    """Make errors raised in the block name parameters instead of options, such as ``out="folder"`` for ``--out``."""
    try:
        yield
    except FedpingError as error:
        for option, parameter in names.items():
            option = option.replace("_", "-")
            named = re.compile(rf"--{option}\b(?!-)( or FEDPING_\w+)?")
            error.args = tuple(named.sub(parameter, said) if isinstance(said, str) else said for said in error.args)
        raise
