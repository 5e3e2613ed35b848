"""The metadata of a Kafka cluster about the topics of a log directory: see `topicfs.engine.cluster.reading`."""
