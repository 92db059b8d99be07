"""The process that stands for a fork of preloaded.py's server: passes on signals and the exit code.

argv: the folder of the server's socket, and Python's arguments.
"""

import json
import os
import select
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    folder, *words = sys.argv[1:]
    waking, woken = socket.socketpair()
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    for number in FORWARDED:
        signal.signal(number, lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as answers:
        answers.connect(os.path.join(folder, "server"))
        request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(answers, [request], [0, 1, 2])
        pid = int(answers.recv(100))
        while True:
            ready = select.select([answers, waking], [], [])[0]
            if answers in ready:
                break
            for number in waking.recv(100):
                os.kill(pid, number)
        code = int(answers.recv(100) or 1)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


main()
