"""Phases of SGD on fresh users with one release each: plain, with the hard filter, with the soft one."""
