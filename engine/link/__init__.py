"""The link to a Kafka cluster: its topics are mirrored into the store, byte for byte.

Messages and SASL are those of kafka-python, which the extra `link` brings; `topicfs.mountd.link` has the threads.
"""
