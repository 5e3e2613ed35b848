"""Jobs for logs that are too large for one machine. `topicfs spark …` runs them.

verify     checks every batch and every index; changes nothing, works beside a daemon
exporting  writes records as Parquet files; works beside a daemon
importing  makes any rows a new topic: segments with their indexes, one task each
"""
