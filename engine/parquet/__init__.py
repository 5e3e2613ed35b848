"""Records as Arrow batches and Parquet files. Besides this package, only `arrow`, `sql` and `spark` import pyarrow."""
