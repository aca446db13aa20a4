"""A verdict for people: on the terminal, and as one HTML file that needs nothing else."""

from analysis.report.page import write_page
from analysis.report.terminal import print_verdict

__all__ = ["print_verdict", "write_page"]
