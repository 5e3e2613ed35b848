"""The keys of a compacted partition: which record is the last of each, in an index that follows the log."""
