"""The inbox of a topic: how files that lie in it are read, claimed and committed."""
