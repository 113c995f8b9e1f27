"""Private selection: the best of a secret number of private trials, for little more than the price of one."""
