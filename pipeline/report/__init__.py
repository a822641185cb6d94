"""Predicted against observed, shown: a table in the terminal, one self-contained HTML page."""
