"""SQL over the topics of a store, by DuckDB. Only this package imports it.

topics  the topics as views
query   a query over them: its words are checked, it runs, and is interrupted
output  what a query gives, as csv, jsonl or Parquet
"""
