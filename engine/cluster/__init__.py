"""What a Kafka cluster has written down about the topics of a log directory: see `topicfs.engine.cluster.reading`."""
