"""A log read from its files, without a lock and without an open store, beside whoever has the log open.

A reader may be another process than the daemon, and on another machine. It finds the partitions and their bounds, plans
ranges of offsets, and reads these. What is appended, sealed, compacted or removed meanwhile does no harm: see `scan`.

place         a backing directory, or a mount of one
files         a partition's directory, listed
bounds        where a partition begins and ends
tail          the same by its files, where no daemon tells it
partitions    the partitions of a topic at one moment
limits        where a read begins and ends: offsets and times, as people give them
offset_range  a part of a partition that is read by one reader
planning      from limits to ranges
pieces        a partition in pieces, each with bounds of its offsets and times
scan          the records of a range, as columns
headers       the same by the headers of batches, where these are enough

Only `scan`, `headers` and `tail` load numpy and the kernels: loading them takes longer than planning a read.
"""
