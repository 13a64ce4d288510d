"""One self-contained HTML page over one or more runs, from their tables alone: begin with `page.py`.

`examples.py` selects the examples behind the numbers, `docs.py` the glossary and the documentation pages.

Sees no model and no study's code: charts and sentences are found by name. May import: errors, files, charts, runs.
"""

from headwise.report.page import Story, findings, write_head_page, write_report

__all__ = ["Story", "findings", "write_head_page", "write_report"]
