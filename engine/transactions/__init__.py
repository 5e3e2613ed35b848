"""The coordinator of transactions and of named producers, for the topics of this store."""
