"""Keep the ledger in files: a process of its own follows the store's streams and writes them into Parquet files.

    columns   the columns of a table, and the row of one stream entry
    folder    the files of a table: immutable Parquet segments and a small hot file
    keeper    follow the store's streams, write rows, rotate, merge and delete old segments
    query     SQL over the files, by DuckDB
    live      the same while they grow, with what the streams hold besides
    tier_worth  what the tiers of each surface are worth, for what steers budgets
    figures   cost, latency and quality of many requests

Nothing of this runs in a gateway worker, and a keeper that is down loses nothing while the store still has its entries
(`telemetry.keep`). DuckDB is imported here alone.
"""
