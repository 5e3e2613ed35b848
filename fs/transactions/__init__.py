"""Transactions whose files are written by name, until they are committed."""
