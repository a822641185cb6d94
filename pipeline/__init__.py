"""The validation pipeline: sweep, launch, store, track, report. Imports no torch."""
