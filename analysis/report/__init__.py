"""A verdict for people: on the terminal, as one HTML file that needs nothing else, and as files of figures."""

from analysis.report.files import write_figures
from analysis.report.page import write_page
from analysis.report.rows import table_notes, training_note
from analysis.report.terminal import print_verdict

__all__ = ["print_verdict", "table_notes", "training_note", "write_figures", "write_page"]
