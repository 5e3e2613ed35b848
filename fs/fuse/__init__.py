"""The adapter to libfuse 2: C callbacks become calls of the file system, and errors become errnos."""
