"""The files of a partition and of a log directory, shown as lines: what Kafka's dump tool prints, or JSON.

Files are read as they are, without a lock, beside whoever has the log open. What is wrong in a file is told with its
position, and the rest of it is shown as far as that can be read.

wanted   what of the files is wanted, and in which form
report   where lines and problems go
batches  `.log`, and the snapshots of a controller
entries  `.index`, `.timeindex`, `.txnindex`, and producer snapshots
texts    checkpoints, partition.metadata and meta.properties
files    which files a path stands for, and who shows each
"""
