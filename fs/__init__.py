"""The mounted face of a log: views, append handles, and the adapter that FUSE calls."""
