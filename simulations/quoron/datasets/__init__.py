"""Users in files that do not fit into memory: folders of Parquet, hive partitions, object stores by their URL.

`files` finds and reads them, `index` numbers their users once, `item_store` holds a run's items, in memory or on
disk, in the order in which rounds ask for them, `population` and `held` are what simulations and
training take for a table.
"""
