"""What a Kafka cluster has written down about the topics of a log directory: see `engine.cluster.reading`."""
