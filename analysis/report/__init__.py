"""A verdict for people: on the terminal, as one self-contained HTML file, and as files of figures."""

from fedping.analysis.report.page import (
    Promised,
    print_verdict,
    report_templates,
    write_figures,
    write_page,
    write_private_page,
)
from fedping.analysis.report.rows import table_notes, training_note

__all__ = [
    "Promised",
    "print_verdict",
    "report_templates",
    "table_notes",
    "training_note",
    "write_figures",
    "write_page",
    "write_private_page",
]
