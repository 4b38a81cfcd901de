"""How a report is shown: on a terminal, as JSON, as a page."""
