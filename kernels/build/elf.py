"""Object code in memory without LLVM: what Numba emits for x86-64 Linux needs two kinds of relocation.

A process that finds its kernels in the disk cache then never loads LLVM, which takes as long as NumPy. `load` gives
None for whatever it does not know (another format, symbols that nobody has provided, initialisers, thread-local
storage), and LLVM loads that.
"""

import ctypes
import functools
import mmap
import os
import struct
import sys

_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001  # types of sections
_WRITE, _ALLOC, _LOCAL = 1, 2, 0x400  # flags of sections
_ABS64, _PC64 = 1, 24  # R_X86_64_64, R_X86_64_PC64
_RUN = 1 | 4  # PROT_READ, PROT_EXEC

# What a compiled function refers to on the path that raises a Python exception. Kernels never take it
# (they return error codes), and without Numba loaded these names would stay unresolved.
EXCEPTION_SYMBOLS = frozenset(
    "NRT_Free numba_do_raise numba_gil_ensure numba_gil_release numba_runtime_build_excinfo_struct numba_unpickle"
    .split()
)  # fmt: skip
provided = {}  # symbol -> address, besides the C functions of this process


@functools.cache
def _libraries():
    """The C library, Python, and libm for functions without a polynomial of ours, such as `pow`."""
    return ctypes.CDLL(None, use_errno=True), ctypes.pythonapi, ctypes.CDLL("libm.so.6")


def address_of(name):
    """The address of a C function in this process, or None."""
    if name in provided:
        return provided[name]
    name = "abort" if name in EXCEPTION_SYMBOLS else name
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            pass
    return None


def load(symbol, code):
    """The address of `symbol` in object code, which stays in memory; None if this is a task for LLVM."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or code[:20] != _HEADER:
        return None
    try:
        return _load(symbol, code)
    except (_Unknown, OSError):
        return None


_HEADER = b"\x7fELF\x02\x01\x01\x00" + bytes(8) + b"\x01\x00\x3e\x00"  # 64 bits, little endian, an object for x86-64


class _Unknown(Exception):
    """Something that only LLVM can load."""


def _load(symbol, code):
    start, width, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [_SECTION.unpack_from(code, start + width * i) for i in range(count)]
    places, fixed, size = _places(sections)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for i, place in places.items():
        kind, offset, length = sections[i][1], sections[i][4], sections[i][5]
        if kind != _NOBITS:
            memory[place : place + length] = code[offset : offset + length]
    names, values = _symbols(code, sections, places, base)
    for _, kind, _, _, offset, length, _, target, _, _ in sections:
        if kind == _RELA and target in places:
            for at, info, addend in _RELOCATION.iter_unpack(code[offset : offset + length]):
                _relocate(memory, base, places[target] + at, info & 0xFFFFFFFF, values(info >> 32) + addend)
    entry = values(names.index(symbol))
    if _libraries()[0].mprotect(ctypes.c_void_p(base), ctypes.c_size_t(fixed), _RUN) != 0:
        raise OSError(ctypes.get_errno(), "no memory may be executed")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # workers run in it until the process ends, behind Python
    return entry


def _places(sections):
    """({number of a section: its place in memory}, bytes of what is never written to, bytes of all).

    The first come before the others, in whole pages.
    """
    places, size, fixed = {}, 0, None
    for writable in (0, _WRITE):
        for i, (_, kind, flags, _, _, length, _, _, alignment, _) in enumerate(sections):
            if not flags & _ALLOC or flags & _WRITE != writable or not length or kind == _UNWIND:
                continue
            if kind not in (_PROGBITS, _NOBITS) or flags & _LOCAL:
                raise _Unknown
            places[i] = -(-size // max(1, alignment)) * max(1, alignment)
            size = places[i] + length
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        fixed = size if fixed is None else fixed
    return places, fixed, size


def _symbols(code, sections, places, base):
    """(names of all symbols, function that gives the address of the symbol of a number)."""
    _, _, _, _, offset, length, strings, _, _, _ = next(s for s in sections if s[1] == _SYMTAB)
    table = list(_SYMBOL.iter_unpack(code[offset : offset + length]))
    text = sections[strings][4]
    names = [code[text + name : code.index(b"\0", text + name)].decode() for name, *_ in table]

    def value(number):
        _, _, _, section, offset, _ = table[number]
        if section in places:
            return base + places[section] + offset
        found = address_of(names[number]) if section == 0 and names[number] else None
        if found is None:
            raise _Unknown
        return found

    return names, value


def _relocate(memory, base, at, kind, value):
    """Write an address, or the distance to it."""
    if kind not in (_ABS64, _PC64):
        raise _Unknown
    if kind == _PC64:
        value -= base + at
    struct.pack_into("<Q", memory, at, value & 0xFFFFFFFFFFFFFFFF)
