"""Appending: the bytes of several writers become lines, batches, and records of a log."""
