"""Adapters that judge published implementations."""
