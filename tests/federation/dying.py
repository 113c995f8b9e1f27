"""For programs that are killed in the middle of what they write: processes that die at a statement, or at a length."""

DYING = """
import os, resource, signal, sqlite3

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

def client(work, path, point, way="statement"):
    out, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(out)
            if way == "statement" and point:
                sqlite3.connect = dying(point)
            if way == "write" and point:  # the write that reaches this length of a file is cut short, and the last
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_FSIZE, (point, resource.RLIM_INFINITY))
            work(path, pipe)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(pipe)
    with open(out, "rb") as sent:
        lines = sent.read().splitlines()
    status = os.waitpid(child, 0)[1]
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
    assert died or status == 0, (point, status)
    return died, lines
"""  # client(work, path, n): (whether it died, lines that work wrote into its pipe); 0: it lives
