"""The process behind a mount: its commands, life cycle, background threads and metrics."""
