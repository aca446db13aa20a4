"""What tests of the operator's jobs share."""

from tests.server_jobs.standalone import cluster

__all__ = ["cluster"]
