"""Records as Arrow batches and Parquet files. The only room that imports pyarrow, beside `topicfs.engine.spark`."""
