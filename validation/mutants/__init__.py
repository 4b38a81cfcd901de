"""Mistakes that the referee must find, and mutations that the tests must notice."""
