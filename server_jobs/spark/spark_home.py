"""The location of Spark."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from fedping.protocol.errors import FedpingError


def spark_home() -> Path:
    """Return the folder of the Spark to run: ``SPARK_HOME``, or else that of the pyspark package.

    Raises:
        FedpingError: there is neither.
    """
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    package = importlib.util.find_spec("pyspark")  # not imported: that takes time, and Spark may not be needed
    if package is None or package.origin is None:
        raise FedpingError(
            f"{sys.executable} has no pyspark: use the Python that has it, or install it with: pip install "
            '"fedping[spark]"'
        )
    return Path(package.origin).parent
