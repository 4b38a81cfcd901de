"""What was measured, and what it says: README.md."""
