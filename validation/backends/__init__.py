"""Implementations to judge: right ones, the printed ones, and templates."""
