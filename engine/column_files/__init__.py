"""Files of columns, Arrow and Parquet, as records. Only what needs them imports it, since pyarrow belongs to an extra.

rows      rows in Arrow → records                files    the files of an inbox: which columns, how much at once
stream    files and streams of Arrow             parquet  files of Parquet         pages   what their pages hold
source    a file as pyarrow reads it             thrift   how Parquet has its own headers
"""
