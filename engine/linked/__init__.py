"""What a store knows of the topics that it mirrors from a Kafka cluster, with or without a connection to it."""
