"""How a report is shown: on a terminal, as plain data, as a page."""
