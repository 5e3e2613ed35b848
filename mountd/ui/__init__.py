"""The web page: a store in a browser, read-only."""
