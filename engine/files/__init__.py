"""The small text files of a store, and the functions that read, replace, lock and list files."""
