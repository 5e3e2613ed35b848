"""Records as Arrow batches and Parquet files. Besides `topicfs.engine.spark`, only this package imports pyarrow."""
