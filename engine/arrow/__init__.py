"""Topics as Arrow record batches, read from segment files beside whoever has the log open.

reader   `topicfs.arrow`: the records of a topic, as a reader of record batches
dataset  the records of a topic, as a dataset that reads only what a filter leaves over
"""
