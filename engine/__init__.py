"""The log engine: Kafka's storage layer, byte for byte."""
