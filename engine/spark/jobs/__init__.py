"""Work on logs that are too large for one machine: what `topicfs spark …` does.

verify    check every batch and every index; changes nothing, works beside a daemon
exporting  records as Parquet files; beside a daemon
importing  any rows as a new topic: segments with their indexes, one task each
compact   the last record of each key, found by Spark; a task for each group of segments writes it anew
"""
