"""A population in shards: worker processes, on this machine or on a Ray cluster, each answer for their own users.

`engine` says who is in which shard and what a worker does, asks all of them and replaces one that dies,
`processes` and `on_ray` start them, `choice` is what somebody asks for.
"""
