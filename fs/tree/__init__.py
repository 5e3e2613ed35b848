"""The tree under the mount point: one small class for each kind of entry."""
