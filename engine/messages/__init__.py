"""Kafka's own messages: the keys and values of the topics that a coordinator keeps, written and read."""
