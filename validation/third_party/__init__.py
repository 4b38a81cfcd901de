"""Adapters that judge released implementations."""
