"""The check of everything on disk, which changes nothing and takes no lock.

finding      what is wrong, where, and what it means for a reader
segment      one segment: batches, records, indexes
batches      the batches of a chunk: verdicts, order of offsets, what the checks of whole partitions need
indexes      the offset index, time index and `.earliest` file against the batches, chunk by chunk
producers    producer state replayed, and compared with snapshots and transaction indexes
partition    one partition: its segments in their order, and the files beside them
directory    the files of a log directory
beside       what topicfs keeps beside the logs
run          all of it, in several threads

Whoever appends, compacts or removes meanwhile is no fault: where something is wrong it is looked at again, and only
what both looks have found is told.
"""
