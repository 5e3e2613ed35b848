"""Views: the records of an offset range, in a format, as the bytes of a file."""
