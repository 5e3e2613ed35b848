"""The bytes of Kafka's binary files, and the name of every file under BACKING: each is drawn here, and nowhere else.

Nothing is opened, and nothing but the standard library is imported, so that who reads a few bytes, as the planning of
Spark's queries does, waits for neither numpy nor the kernels. Where an array comes out, numpy is imported then.

paths   names of directories and files               batch_header       the head of a batch, its flags, and a marker
layout  what an entry is made of                     transaction_index  what was aborted in a segment
index   the offset index and the time index          producer_snapshot  what was known of producers
"""
