"""Makes system calls fail for this process and its children, as on old kernels or in containers."""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping

# Numbers of system calls.
_CALLS = {
    "x86_64": {
        "socket": 41, "ptrace": 101, "mount": 165, "unshare": 272, "setns": 308,
        "process_vm_readv": 310, "shmget": 29,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "mount": 40, "unshare": 97, "setns": 268,
        "process_vm_readv": 270, "shmget": 194,
    },
}[os.uname().machine]  # fmt: skip
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of the kernel's filter language
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CALL, _FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def _instruction(code: int, value: int, when: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, when, otherwise, value)


def refuse(calls: Mapping[str, int]) -> None:
    """Makes each system call of `calls` fail with its errno."""
    program = [_instruction(_LOAD, _CALL)]
    for call, code in calls.items():
        program += [_instruction(_EQUAL, _CALLS[call], 0, 1), _instruction(_RETURN, _ERRNO | code)]
    _install([*program, _instruction(_RETURN, _ALLOW)])


def refuse_sockets(family: int) -> None:
    """Makes sockets of `family` unknown, as on a kernel without this protocol."""
    _install(
        [
            _instruction(_LOAD, _CALL),
            _instruction(_EQUAL, _CALLS["socket"], 0, 3),
            _instruction(_LOAD, _FIRST_ARGUMENT),
            _instruction(_EQUAL, family, 0, 1),
            _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
            _instruction(_RETURN, _ALLOW),
        ]
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _install(instructions: list[bytes]) -> None:
    program = _Program(len(instructions), b"".join(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = ((_NO_NEW_PRIVILEGES, 1, 0), (_SECCOMP, _FILTER, ctypes.byref(program)))
    for option, first, second in arguments:
        if libc.prctl(option, first, second, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
