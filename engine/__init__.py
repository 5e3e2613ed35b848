"""The log engine: Kafka's storage layer, byte for byte. What programs import is in `engine/public`, as `topicfs`."""
