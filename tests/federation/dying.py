"""For programs that are killed in the middle of what they write: a SQLite whose process dies at a statement."""

DYING = """
import os, signal, sqlite3

connect = sqlite3.connect

def dying(statements):
    def traced(*arguments, **named):
        left = statements
        def count(statement):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        database = connect(*arguments, **named)
        database.set_trace_callback(count)
        return database
    return traced
"""  # sqlite3.connect = dying(n): at the n-th
