"""How a report is shown: on a terminal, as JSON, as JUnit XML, as a page."""
