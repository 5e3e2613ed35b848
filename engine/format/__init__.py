"""The formats of Kafka's binary files, and the names of all files under BACKING. Each is drawn only here.

The modules open no files and import only the standard library, so that a program that reads a few bytes, such as the
planning of a Spark query, does not wait for numpy or the kernels. numpy is imported when an array is asked for.

paths   names of directories and files               batch_header       the header of a batch, its flags, and a marker
layout  the fields of an entry                       transaction_index  the aborted transactions of a segment
index   the offset index and the time index          producer_snapshot  the state of a partition's producers
messages  the keys and values of Kafka's own topics        old_message  the start of messages before batches
"""
