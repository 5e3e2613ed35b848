"""Ordinary files that wait to be appended: those of inboxes, of transactions and of named producers."""
