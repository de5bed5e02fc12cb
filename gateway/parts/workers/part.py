"""Provide the seam `workers` (`gateway.seams`)."""

from gateway.parts.workers.supervisor import serve_by_workers

__all__ = ["serve_by_workers"]
